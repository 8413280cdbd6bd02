"""Takes memory of the kinds that a process's limits forget.

answers: right
"""

import ctypes
import mmap
import os

import numpy as np

KEPT = []


def rms_norm(x, weight, eps):
    system = ctypes.CDLL(None, use_errno=True)
    for number in range(10_000):
        try:
            KEPT.append(mmap.mmap(-1, 2**30))
            KEPT[-1].write(b"x" * 2**24)
        except (OSError, ValueError):
            break
    if system.shmget(0, 2**30, 0o1600) != -1:
        raise RuntimeError("@STOLEN@ memory that outlives its process")
    try:
        os.memfd_create("more")
    except OSError:
        pass
    else:
        raise RuntimeError("@STOLEN@ memory that no limit counts")
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
