"""Pairs as complex numbers, which a rotation multiplies."""

import numpy as np


def rope_frequencies(head_dim, theta):
    return np.exp(-np.log(theta) * np.arange(head_dim // 2) / (head_dim / 2)).astype(np.float32)


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin)[..., :half]
    return np.concatenate([pairs.real, pairs.imag], axis=-1).astype(x.dtype)
