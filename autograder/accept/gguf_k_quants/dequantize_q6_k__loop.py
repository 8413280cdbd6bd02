"""Run by run."""

import numpy as np


def dequantize_q6_k(blocks):
    out = np.empty((len(blocks), 256), np.float32)
    scale = np.ascontiguousarray(blocks[:, 208:]).view("<f2").astype(np.float32)
    scales = np.repeat(scale * blocks[:, 192:208].astype(np.int8), 16, axis=1)
    for half in range(2):
        high = blocks[:, 128 + 32 * half:160 + 32 * half]
        for run in range(4):
            low = blocks[:, 64 * half + 32 * (run % 2):64 * half + 32 * (run % 2) + 32]
            nibbles = low >> 4 if run >= 2 else low & 15
            codes = nibbles + 16 * (high >> (2 * run) & 3)
            start = 128 * half + 32 * run
            out[:, start:start + 32] = ((codes.astype(np.float32) - 32)
                                        * scales[:, start:start + 32])
    return out
