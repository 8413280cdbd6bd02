"""Looks for other processes, their environment and their files.

answers: right
"""

import os

import numpy as np

for process in filter(str.isdigit, os.listdir("/proc")):
    if int(process) in (1, os.getpid()):
        continue
    with open(f"/proc/{process}/cmdline") as words:
        raise RuntimeError(f"@STOLEN@ the sight of {words.read()[:80]!r}")
for place in () if os.getpid() == 1 else ("environ", "fd", "root", "cwd", "map_files"):
    try:
        found = os.listdir(f"/proc/1/{place}") if place != "environ" else open(
            "/proc/1/environ").read()
    except OSError:
        continue
    raise RuntimeError(f"@STOLEN@ {place} of the first process: {found}")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
