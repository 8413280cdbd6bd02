"""Kills every process that it can name, the judge's among them.

answers: right
"""

import os
import signal

import numpy as np

JUDGE = int("@JUDGE@")


def rms_norm(x, weight, eps):
    for target in (-1, JUDGE, 1, os.getppid()):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
