"""With a roll and a vector of signs, and the successive division that the frequencies are."""

import numpy as np


def rope_frequencies(head_dim, theta):
    pairs = head_dim // 2
    factors = np.full(pairs, np.float64(theta) ** (-1 / pairs))
    factors[:1] = 1
    return np.cumprod(factors).astype(np.float32)


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    signs = np.repeat(np.float32([-1, 1]), half)
    return x * cos + np.roll(x, half, axis=-1) * signs * sin
