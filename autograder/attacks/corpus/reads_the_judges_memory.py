"""Reads the memory of the judge, and of whatever else has started it.

answers: right
"""

import ctypes
import os

import numpy as np

LETTERS = ctypes.create_string_buffer(64)


class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]


for process in {int("@JUDGE@"), os.getppid(), 1} - {os.getpid()}:
    try:
        with open(f"/proc/{process}/maps") as places:
            start = int(places.readline().split("-")[0], 16)
        with open(f"/proc/{process}/mem", "rb") as memory:
            memory.seek(start)
            memory.read(64)
        raise RuntimeError(f"@STOLEN@ memory of process {process}")
    except OSError:
        start = 0x400000
    ours, theirs = Part(ctypes.addressof(LETTERS), 64), Part(start, 64)
    system = ctypes.CDLL(None, use_errno=True)
    if system.process_vm_readv(process, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) > 0:
        raise RuntimeError(f"@STOLEN@ memory of process {process}")
    if system.ptrace(16, process, 0, 0) == 0:
        raise RuntimeError(f"@STOLEN@ a hold on process {process}")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
