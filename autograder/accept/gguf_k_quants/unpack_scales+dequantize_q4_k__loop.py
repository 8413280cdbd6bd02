"""Sub-block by sub-block."""

import numpy as np


def unpack_scales(packed):
    scales, minimums = np.zeros((2, len(packed), 8), np.uint8)
    for j in range(4):
        scales[:, j] = packed[:, j] % 64
        minimums[:, j] = packed[:, 4 + j] % 64
        scales[:, j + 4] = packed[:, 8 + j] % 16 + 16 * (packed[:, j] // 64)
        minimums[:, j + 4] = packed[:, 8 + j] // 16 + 16 * (packed[:, 4 + j] // 64)
    return scales, minimums


def dequantize_q4_k(blocks):
    out = np.empty((len(blocks), 256), np.float32)
    head = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32)
    scales, minimums = unpack_scales(blocks[:, 4:16])
    for j in range(8):
        run = blocks[:, 16 + j // 2 * 32:48 + j // 2 * 32]
        nibbles = run >> 4 if j % 2 else run & 15
        out[:, 32 * j:32 * j + 32] = (nibbles * (head[:, :1] * scales[:, j:j + 1])
                                      - head[:, 1:] * minimums[:, j:j + 1])
    return out
