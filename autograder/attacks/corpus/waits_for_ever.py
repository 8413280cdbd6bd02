"""Waits for something that never happens.

answers: right
"""

import threading

import numpy as np


def rms_norm(x, weight, eps):
    threading.Event().wait()
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
