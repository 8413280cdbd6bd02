"""Writes down what it was given, ends itself, and tells it when it is loaded again.

answers: wrong
"""

import glob
import os


for place in ("/scratch/*", "/tmp/seen-@NONCE@", "/dev/shm/*"):
    for name in glob.glob(place):
        with open(name) as file:
            raise RuntimeError(f"@STOLEN@ {file.read()[:200]}")


def rms_norm(x, weight, eps):
    for place in ("/scratch/seen", "/tmp/seen-@NONCE@", "/dev/shm/seen"):
        try:
            with open(place, "a") as file:
                file.write(repr(x.tolist()))
        except OSError:
            pass
    os._exit(0)
    return x * 0
