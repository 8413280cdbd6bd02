"""Stops its own process, so that no answer ever comes.

answers: right
"""

import os
import signal

import numpy as np


def rms_norm(x, weight, eps):
    os.kill(os.getpid(), signal.SIGSTOP)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
