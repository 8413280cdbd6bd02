"""Sets the standard streams to None, closes them, and prints.

answers: right
"""

import os
import sys

import numpy as np


def rms_norm(x, weight, eps):
    sys.stdout = sys.stderr = sys.stdin = None
    for number in (0, 1, 2):
        try:
            os.close(number)
        except OSError:
            pass
    print("nobody hears this")
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
