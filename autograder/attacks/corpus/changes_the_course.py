"""Writes into the engine, the packages and the worker's own code.

answers: right
"""

import os
import sys

import gearworks
import numpy as np

places = [gearworks.__file__, np.__file__, sys.executable, os.__file__, "/course/x", "/x",
          "/usr/x", "/etc/x", "/dev/x", "@FOLDER@/x", "/proc/sys/kernel/hostname"]
for place in places:
    try:
        with open(place, "ab"):
            pass
    except OSError:
        continue
    raise RuntimeError(f"@STOLEN@ the right to write {place}")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
