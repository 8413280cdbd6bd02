"""Both halves from a table of 256 pairs, joined by concatenation."""

import numpy as np

PAIRS = np.array([(byte & 0xF, byte >> 4) for byte in range(256)], np.float32)


def codes(raw):
    return np.moveaxis(PAIRS[raw], -1, 1).reshape(len(raw), 32)


def half(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def dequantize_q4_0(blocks):
    return (codes(blocks[:, 2:]) - np.float32(8)) * half(blocks[:, :2])


def dequantize_q4_1(blocks):
    return codes(blocks[:, 4:]) * half(blocks[:, :2]) + half(blocks[:, 2:4])
