"""Leaves a child behind that outlives it and holds the judge's pipes.

answers: right
"""

import os
import subprocess
import sys
import time

import numpy as np

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)", "@NONCE@"],
                         start_new_session=True)
        time.sleep(20)
    os._exit(0)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
