"""Replaces its process by another program, with a library to preload.

answers: wrong
"""

import os
import sys



def rms_norm(x, weight, eps):
    os.environ["LD_PRELOAD"] = "/scratch/forged.so"
    os.execv(sys.executable, [sys.executable, "-c", "while True: pass"])
    return x * 0
