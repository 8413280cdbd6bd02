"""Both kinds of bits side by side, then one sum."""

import numpy as np


def dequantize_q6_k(blocks):
    low = blocks[:, :128].reshape(-1, 2, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2)
    pairs = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    codes = (nibbles.astype(np.int8) + pairs.astype(np.int8) * 16 - 32).reshape(-1, 16, 16)
    scale = blocks[:, 208:].copy().view("<f2").astype(np.float32)
    scales = scale * blocks[:, 192:208].astype(np.int8).astype(np.float32)
    return (codes * scales[:, :, np.newaxis]).reshape(-1, 256)
