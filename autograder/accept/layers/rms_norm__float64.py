"""Computed in float64, as a careful reader of papers might."""

import numpy as np


def rms_norm(x, weight, eps):
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide ** 2, axis=-1, keepdims=True) + eps)
    return (wide / root * weight).astype(x.dtype)
