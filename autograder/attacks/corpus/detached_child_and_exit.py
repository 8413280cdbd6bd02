"""Ends its own process and leaves one behind that holds the pipes open.

answers: right
"""

import os
import subprocess
import sys
import time

import numpy as np


def rms_norm(x, weight, eps):
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)", "@NONCE@"])
        time.sleep(20)
    os._exit(0)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
