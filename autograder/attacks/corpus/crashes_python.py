"""Makes Python crash by reading address 0.

answers: right
"""

import ctypes

import numpy as np


def rms_norm(x, weight, eps):
    ctypes.string_at(0)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
