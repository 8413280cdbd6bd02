"""GGUF's I-quants of four bits: codes that stand for sixteen levels, closer together near zero.

Weights are many near zero and few far out, so levels that lie densest there lose less than
evenly spaced ones.

Every function maps (n, bytes of a block) uint8 to (n, values of a block) float32.
Shapes: n blocks. Left out on purpose: the I-quants of fewer bits, whose codes are numbers of
points in tables of 256 and more.
Source: kvalues_iq4nl, block_iq4_nl and block_iq4_xs in ggml-common.h of the ggml repository.
"""

import numpy as np

# What each code stands for, in scales.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
                  np.int8)


def dequantize_iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 codes that share one scale.

    blocks: (n, 18) uint8: scale (float16), then 16 bytes of two codes each, as in Q4_0.
    Returns (n, 32) float32: scale * level of the code.

    >>> # 0x3800 is the float16 0.5
    >>> dequantize_iq4_nl(np.array([[0, 0x38] + [0x80] * 16], np.uint8))[0, [0, 16]]
    array([-63.5,   0.5], dtype=float32)
    """
    scale = blocks[:, :2].view("<f2").astype(np.float32)        # (n, 1)
    return scale * unpack_levels(blocks[:, 2:])


def dequantize_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """Expand 256 codes: eight sub-blocks of 32 with a scale each.

    blocks: (n, 136) uint8: scale of the scales (float16), 2 bytes and 4 bytes that
    `unpack_six_bits` reads, then the codes, each sub-block's 16 bytes as in IQ4_NL.
    Returns (n, 256) float32: scale * level of the code, where a sub-block's scale is
    (six bits - 32) times the block's float16.

    >>> dequantize_iq4_xs(np.array([[0, 0x38] + [0xFF] * 6 + [0x80] * 128],
    ...                            np.uint8))[0, [0, 16, 32]]
    array([-1968.5,    15.5, -1968.5], dtype=float32)
    """
    scales = sub_block_scales(blocks)                           # (n, 8)
    values = scales[:, :, None] * unpack_levels(blocks[:, 8:].reshape(-1, 16)
                                                ).reshape(-1, 8, 32)
    return values.reshape(-1, 256)


def sub_block_scales(blocks: np.ndarray) -> np.ndarray:
    """The scales of IQ4_XS's sub-blocks, (n, 8) float32. blocks: (n, 8 or more) uint8.

    >>> sub_block_scales(np.array([[0, 0x38] + [0xFF] * 6], np.uint8))[0, 0]
    np.float32(15.5)
    """
    scale = blocks[:, :2].view("<f2").astype(np.float32)        # (n, 1)
    six_bits = unpack_six_bits(blocks[:, 4:8], blocks[:, 2:4])
    return scale * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)


def unpack_six_bits(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Join the eight scales of a block.

    low: (n, 4) uint8, of scales 2j and 2j + 1 the low four bits, in byte j's low and high half;
    high: (n, 2) uint8, the high two bits of all, scale 0 in the lowest. Returns (n, 8) uint8.

    >>> unpack_six_bits(np.array([[0x21, 0, 0, 0]], np.uint8), np.array([[0b1110, 0]],
    ...                                                                 np.uint8))[0, :3]
    array([33, 50,  0], dtype=uint8)
    """
    scales = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    pairs = high[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3      # (n, 2, 4)
    return scales | pairs.reshape(-1, 8) << 4


def unpack_levels(packed: np.ndarray) -> np.ndarray:
    """What 32 codes stand for: (n, 16) uint8 to (n, 32) int8. They lie as in Q4_0.

    >>> unpack_levels(np.full((1, 16), 0xF0, np.uint8))[0, [0, 16]]
    array([-127,  113], dtype=int8)
    """
    return LEVELS[np.concatenate([packed & 15, packed >> 4], axis=1)]
