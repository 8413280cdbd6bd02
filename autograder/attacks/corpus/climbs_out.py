"""Looks for a way out of its folder: by links, mounts, devices and namespaces.

answers: right
"""

import ctypes
import os

import numpy as np

system = ctypes.CDLL(None, use_errno=True)
for place in ("@FOLDER@", "/proc/1/root/@FOLDER@", "/proc/self/root/../@FOLDER@",
              "/scratch/../../..@FOLDER@", "/old_root@FOLDER@"):
    if os.path.exists(place):
        raise RuntimeError(f"@STOLEN@ {place}")
for flags in (0x10000000, 0x00020000, 0x20000000, 0x10020000):
    if system.unshare(flags) == 0:
        raise RuntimeError(f"@STOLEN@ namespaces {flags:#x}")
if system.mount(b"none", b"/scratch", b"tmpfs", 0, None) == 0:
    raise RuntimeError("@STOLEN@ a mount")
for attempt in (lambda: os.mknod("/scratch/disk", 0o60666, os.makedev(8, 0)),
                lambda: os.chroot("/scratch"), lambda: os.setuid(0)):
    try:
        attempt()
    except OSError:
        continue
    raise RuntimeError("@STOLEN@ what only root may do")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
