"""GGUF's K-quants: 256 values in sub-blocks, whose scales are small integers with a scale.

Two levels of scales cost less than one float16 for every 32 values, so the bits go to the
values: a block of Q4_K holds 256 four-bit values, eight scales and eight minimums of six bits,
and two float16 that turn those into numbers. "Q4_K_M" is no block format but a recipe: most
tensors of such a file are Q4_K, some Q6_K, and rows that are no multiple of 256 fall back to
Q5_0 or Q8_0.

Every function maps (n, bytes of a block) uint8 to (n, 256) float32.
Shapes: n blocks. Left out on purpose: quantizing, and Q8_K, which holds activations and never
stands in a file.
Source: block_q2_K to block_q6_K in ggml-common.h of the ggml repository.
"""

import numpy as np

BLOCK_VALUES = 256

BIT_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]    # (8, 1): each bit of a byte, lowest first
PAIR_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]     # (4, 1): each pair of bits


def dequantize_q4_k(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 four-bit values: eight sub-blocks of 32 with a scale and a minimum each.

    blocks: (n, 144) uint8: scale of the scales (float16), scale of the minimums (float16), 12
    bytes that `unpack_scales` reads, then four runs of 32 bytes. The low four bits of run i are
    the values of sub-block 2i, its high four bits those of sub-block 2i + 1.
    Returns (n, 256) float32: scale * four bits - minimum, where a sub-block's scale and minimum
    are its six-bit numbers times the block's two float16. Source: block_q4_K in ggml-common.h.

    >>> # 0x3800 is the float16 0.5, 0x3C00 is 1
    >>> scales = [0, 0x38, 0, 0x3C] + [2, 4, 0, 0] + [1, 0, 0, 0] + [0] * 4
    >>> dequantize_q4_k(np.array([scales + [0x53] * 128], np.uint8))[0, [0, 31, 32, 64]]
    array([ 2.,  2., 10.,  0.], dtype=float32)
    """
    scales, minimums = sub_block_scales(blocks)             # (n, 8, 1) each
    values = unpack_nibbles(blocks[:, 16:]) * scales        # (n, 8, 32)
    values -= minimums
    return values.reshape(-1, BLOCK_VALUES)


def dequantize_q5_k(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 five-bit values: eight sub-blocks of 32 with a scale and a minimum each.

    blocks: (n, 176) uint8: two float16 and 12 bytes as in Q4_K, 32 bytes of fifth bits, then
    the low four bits as in Q4_K. Bit i of byte j is the fifth bit of value j of sub-block i.
    Returns (n, 256) float32: scale * five bits - minimum. Source: block_q5_K in ggml-common.h.

    >>> scales = [0, 0x38, 0, 0x3C] + [2, 4, 0, 0] + [1, 0, 0, 0] + [0] * 4
    >>> dequantize_q5_k(np.array([scales + [0b10] * 32 + [0x53] * 128],
    ...                          np.uint8))[0, [0, 31, 32, 64]]
    array([ 2.,  2., 42.,  0.], dtype=float32)
    """
    scales, minimums = sub_block_scales(blocks)             # (n, 8, 1) each
    codes = unpack_nibbles(blocks[:, 48:])                  # (n, 8, 32)
    codes |= (blocks[:, None, 16:48] >> BIT_SHIFTS & 1) << 4
    values = codes * scales
    values -= minimums
    return values.reshape(-1, BLOCK_VALUES)


def dequantize_q6_k(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 six-bit values around zero: 16 sub-blocks of 16 with a scale each.

    blocks: (n, 210) uint8: 128 bytes with the low four bits, 64 bytes with the high two bits,
    16 scales (int8), then the scale of the scales (float16). The block is two halves of 128
    values, each four runs of 32 values; a half takes 64 bytes of low bits and 32 bytes of high
    bits:

        run 0: low four bits of bytes  0 to 31, bits 0-1 of the 32 bytes of high bits
        run 1: low four bits of bytes 32 to 63, bits 2-3
        run 2: high four bits of bytes  0 to 31, bits 4-5
        run 3: high four bits of bytes 32 to 63, bits 6-7

    Returns (n, 256) float32: scale * (six bits - 32), where a sub-block's scale is its int8
    times the block's float16.
    Source: block_q6_K in ggml-common.h.

    >>> low, high, scales = [0x21] * 128, [0b11_10_01_00] * 64, [1] * 15 + [255]
    >>> dequantize_q6_k(np.array([low + high + scales + [0, 0x38]],
    ...                          np.uint8))[0, [0, 32, 64, 96, 255]]
    array([-15.5,  -7.5,   1. ,   9. ,  -9. ], dtype=float32)
    """
    low = blocks[:, :128].reshape(-1, 2, 2, 32)             # half, run of bytes, byte
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    scale = blocks[:, 208:].view("<f2").astype(np.float32)  # (n, 1)
    scales = scale * blocks[:, 192:208].view(np.int8)       # (n, 16)

    codes = np.empty((len(blocks), 2, 4, 32), np.uint8)     # half, run, value
    codes[:, :, :2] = low & 15
    codes[:, :, 2:] = low >> 4
    codes |= (high >> PAIR_SHIFTS & 3) << 4
    # unsigned until here: 0 - 32 would wrap around
    values = codes.reshape(-1, 16, 16).astype(np.float32)
    values -= 32
    values *= scales[:, :, None]
    return values.reshape(-1, BLOCK_VALUES)


def dequantize_q3_k(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 three-bit values around zero: 16 sub-blocks of 16 with a scale each.

    blocks: (n, 110) uint8: 32 bytes of third bits, 64 bytes of low two bits, 12 bytes with 16
    six-bit scales, then the scale of the scales (float16). The two bits lie as in Q2_K, the
    third bits as the fifth bits in Q5_K. Byte j of the first eight bytes of scales holds the
    low four bits of scales j and j + 8; byte 8 + j holds the high two bits of scales j, j + 4,
    j + 8 and j + 12.
    Returns (n, 256) float32: scale * (three bits - 4), where a sub-block's scale is
    (six bits - 32) times the block's float16. Source: block_q3_K in ggml-common.h.

    >>> dequantize_q3_k(np.array([[0] * 32 + [0b11] * 64 + [0] * 12 + [0, 0x38]],
    ...                          np.uint8))[0, [0, 32]]
    array([16., 64.], dtype=float32)
    """
    packed = blocks[:, 96:108]
    six_bits = np.empty((len(blocks), 16), np.uint8)
    six_bits[:, :8] = packed[:, :8] & 15
    six_bits[:, 8:] = packed[:, :8] >> 4
    six_bits |= (packed[:, None, 8:] >> PAIR_SHIFTS & 3).reshape(-1, 16) << 4
    scale = blocks[:, 108:].view("<f2").astype(np.float32)  # (n, 1)
    scales = scale * (six_bits.astype(np.float32) - 32)     # (n, 16)

    codes = unpack_bit_pairs(blocks[:, 32:96])              # (n, 8, 32)
    codes |= (blocks[:, None, :32] >> BIT_SHIFTS & 1) << 2
    values = codes.reshape(-1, 16, 16).astype(np.float32)
    values -= 4
    values *= scales[:, :, None]
    return values.reshape(-1, BLOCK_VALUES)


def dequantize_q2_k(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 two-bit values: 16 sub-blocks of 16 with a scale and a minimum each.

    blocks: (n, 84) uint8: 16 bytes with a four-bit scale (low) and a four-bit minimum (high)
    each, two runs of 32 bytes that `unpack_bit_pairs` reads, scale of the scales (float16),
    scale of the minimums (float16).
    Returns (n, 256) float32: scale * two bits - minimum, where a sub-block's scale and minimum
    are its four-bit numbers times the block's two float16. Source: block_q2_K in ggml-common.h.

    >>> dequantize_q2_k(np.array([[0x12] * 16 + [0b11] * 64 + [0, 0x38, 0, 0x3C]],
    ...                          np.uint8))[0, [0, 32]]
    array([ 2., -1.], dtype=float32)
    """
    scales = blocks[:, 80:82].view("<f2").astype(np.float32) * (blocks[:, :16] & 15)   # (n, 16)
    minimums = blocks[:, 82:84].view("<f2").astype(np.float32) * (blocks[:, :16] >> 4)
    values = unpack_bit_pairs(blocks[:, 16:80]).reshape(-1, 16, 16) * scales[:, :, None]
    values -= minimums[:, :, None]
    return values.reshape(-1, BLOCK_VALUES)


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack the eight scales and eight minimums of 6 bits that Q4_K and Q5_K keep in 12 bytes.

    packed: (n, 12) uint8. Returns (scales, minimums), each (n, 8) uint8, 0 to 63. With
    sub-block j from 0 to 3:

        byte j        scale j in the low six bits,     the high two bits of scale j + 4 above
        byte 4 + j    minimum j in the low six bits,   the high two bits of minimum j + 4 above
        byte 8 + j    the low four bits of scale j + 4 below, of minimum j + 4 above

    >>> packed = np.array([[0b10_000011, 0, 0, 0] + [0b01_000001, 0, 0, 0] + [0x52, 0, 0, 0]],
    ...                   np.uint8)
    >>> scales, minimums = unpack_scales(packed)
    >>> scales[0, [0, 4]], minimums[0, [0, 4]]
    (array([ 3, 34], dtype=uint8), array([ 1, 21], dtype=uint8))
    """
    scales = np.empty((len(packed), 8), np.uint8)
    minimums = np.empty((len(packed), 8), np.uint8)
    scales[:, :4] = packed[:, 0:4] & 63
    minimums[:, :4] = packed[:, 4:8] & 63
    scales[:, 4:] = packed[:, 8:] & 15 | packed[:, 0:4] >> 6 << 4
    minimums[:, 4:] = packed[:, 8:] >> 4 | packed[:, 4:8] >> 6 << 4
    return scales, minimums


def sub_block_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and minimums of the sub-blocks of Q4_K or Q5_K, each (n, 8, 1) float32.

    blocks: (n, 16 or more) uint8: scale of the scales (float16), scale of the minimums
    (float16), 12 packed bytes.

    >>> scales, minimums = sub_block_scales(np.array([[0, 0x38, 0, 0x3C] + [2] * 4 + [1] * 4
    ...                                               + [0] * 4], np.uint8))
    >>> scales[0, 0], minimums[0, 0]
    (array([1.], dtype=float32), array([1.], dtype=float32))
    """
    scales, minimums = unpack_scales(blocks[:, 4:16])                       # (n, 8) each
    scales = blocks[:, 0:2].view("<f2").astype(np.float32) * scales
    minimums = blocks[:, 2:4].view("<f2").astype(np.float32) * minimums
    return scales[:, :, None], minimums[:, :, None]


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """Unpack runs of 32 bytes: (n, 128) to (n, 8, 32), both uint8.
    The low four bits of a run come before its high.

    >>> unpack_nibbles(np.full((1, 128), 0x53, np.uint8))[0, [0, 1], 0]
    array([3, 5], dtype=uint8)
    """
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


def unpack_bit_pairs(packed: np.ndarray) -> np.ndarray:
    """Unpack runs of 32 bytes: (n, 64) to (n, 8, 32), both uint8.
    A run gives its lowest two bits first.

    >>> unpack_bit_pairs(np.full((1, 64), 0b11_10_01_00, np.uint8))[0, :5, 0]
    array([0, 1, 2, 3, 0], dtype=uint8)
    """
    runs = packed.reshape(-1, 2, 1, 32)
    return (runs >> PAIR_SHIFTS & 3).reshape(-1, 8, 32)
