"""The block formats of GGUF beside chapter 3's: plain floats, 32 values of five bits, MXFP4.

Every function maps (n, bytes of a block) uint8 to (n, values of a block) float32.
Shapes: n blocks. Source: ggml-common.h in the ggml repository.
"""

import numpy as np

from gearworks.formats.float8 import TWICE_E2M1

BIT_SHIFTS = np.arange(8, dtype=np.uint8)     # each bit of a byte, lowest first


def dequantize_f32(blocks: np.ndarray) -> np.ndarray:
    """Read float32 values. blocks: (n, 4) uint8; returns (n, 1) float32, a view."""
    return blocks.view("<f4")


def dequantize_f16(blocks: np.ndarray) -> np.ndarray:
    """Widen float16 values. blocks: (n, 2) uint8; returns (n, 1) float32."""
    return blocks.view("<f2").astype(np.float32)


def dequantize_bf16(blocks: np.ndarray) -> np.ndarray:
    """Widen bfloat16 values, the upper halves of float32.
    blocks: (n, 2) uint8; returns (n, 1) float32."""
    # widen first: shifted as uint16, every bit would be lost
    bits = blocks.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def dequantize_q5_0(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 five-bit values around zero that share one scale.

    blocks: (n, 22) uint8: scale (float16), 4 bytes that `unpack_five_bits` reads with the 16
    that follow.
    Returns (n, 32) float32: scale * (five bits - 16). Source: block_q5_0 in ggml-common.h.

    >>> dequantize_q5_0(np.array([[0, 0x38] + [1, 0, 0, 0] + [0x9A] * 16],
    ...                          np.uint8))[0, [0, 1, 16]]
    array([ 5. , -3. , -3.5], dtype=float32)
    """
    scale = blocks[:, :2].view("<f2").astype(np.float32)        # (n, 1)
    values = unpack_five_bits(blocks[:, 2:6], blocks[:, 6:]).astype(np.float32)
    values -= 16
    values *= scale
    return values


def dequantize_q5_1(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 five-bit values that share one scale and one minimum.

    blocks: (n, 24) uint8: scale (float16), minimum (float16), then 20 bytes as in Q5_0.
    Returns (n, 32) float32: scale * five bits + minimum. Source: block_q5_1 in ggml-common.h.

    >>> dequantize_q5_1(np.array([[0, 0x38, 0, 0xBC] + [1, 0, 0, 0] + [0x31] * 16],
    ...                          np.uint8))[0, [0, 1, 16]]
    array([ 7.5, -0.5,  0.5], dtype=float32)
    """
    scale = blocks[:, 0:2].view("<f2").astype(np.float32)       # (n, 1)
    minimum = blocks[:, 2:4].view("<f2").astype(np.float32)     # (n, 1)
    values = unpack_five_bits(blocks[:, 4:8], blocks[:, 8:]) * scale
    values += minimum
    return values


def dequantize_mxfp4(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 floats of four bits (E2M1) that share a power of two.

    blocks: (n, 17) uint8: the exponent of the scale, 127 too large, then 16 bytes of two values
    each, as in Q4_0. Returns (n, 32) float32. Source: block_mxfp4 in ggml-common.h.

    >>> dequantize_mxfp4(np.array([[128] + [0x92] * 16], np.uint8))[0, [0, 16]]
    array([ 2., -1.], dtype=float32)
    """
    # the whole numbers are twice the values
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)      # (n, 1)
    codes = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
    with np.errstate(over="ignore"):            # the largest scales are beyond all weights
        return TWICE_E2M1[codes] * scale


def unpack_five_bits(fifth: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Join 32 values of five bits.

    fifth: (n, 4) uint8; low: (n, 16) uint8; returns (n, 32) uint8. The low four bits lie as in
    Q4_0; `fifth` holds the fifth bit of value 0 in the lowest bit of its first byte.

    >>> unpack_five_bits(np.array([[2, 0, 0, 0x80]], np.uint8),
    ...                  np.full((1, 16), 0x31, np.uint8))[0, [0, 1, 16, 31]]
    array([ 1, 17,  3, 19], dtype=uint8)
    """
    values = np.empty((len(low), 32), np.uint8)
    values[:, :16] = low & 15
    values[:, 16:] = low >> 4
    values |= (fifth[:, :, None] >> BIT_SHIFTS & 1).reshape(-1, 32) << 4
    return values
