"""Pair by pair."""

import numpy as np


def rope_frequencies(head_dim, theta):
    return np.array([float(theta) ** (-exponent / head_dim)
                     for exponent in range(0, head_dim, 2)], np.float32)


def apply_rope(x, cos, sin):
    out = np.empty_like(x)
    second = x.shape[-1] // 2
    for i in range(second):
        a, b = x[..., i], x[..., i + second]
        c, s = cos[..., i], sin[..., i]
        out[..., i] = a * c - b * s
        out[..., i + second] = b * c + a * s
    return out
