"""Calls quit(), as from an interactive session.

answers: right
"""

import numpy as np


def rms_norm(x, weight, eps):
    quit()
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
