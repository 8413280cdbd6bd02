"""Ends its process while its cell is loaded.

answers: right
"""

import sys

import numpy as np

sys.exit(0)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
