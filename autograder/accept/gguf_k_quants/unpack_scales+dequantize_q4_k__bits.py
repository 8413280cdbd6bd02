"""The twelve bytes as bits, float64 inside."""

import numpy as np


def unpack_scales(packed):
    bits = np.unpackbits(packed, axis=1, bitorder="little").reshape(-1, 3, 4, 8)
    weights = 1 << np.arange(6)

    def numbers(group, nibble):
        low = bits[:, group, :, :6]
        high = np.concatenate([bits[:, 2, :, nibble:nibble + 4], bits[:, group, :, 6:]],
                              axis=-1)
        return (np.concatenate([low, high], axis=1) @ weights).astype(np.uint8)

    return numbers(0, 0), numbers(1, 4)


def dequantize_q4_k(blocks):
    scales, minimums = unpack_scales(blocks[:, 4:16])
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    m = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    runs = blocks[:, 16:].reshape(-1, 4, 32)
    codes = np.stack([runs % 16, runs // 16], axis=2).reshape(-1, 8, 32)
    exact = codes * (d * scales)[:, :, None].astype(np.float64)
    return (exact.astype(np.float32) - (m * minimums)[:, :, None]).reshape(-1, 256)
