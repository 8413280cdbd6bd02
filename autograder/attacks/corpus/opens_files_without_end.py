"""Opens files and never closes one.

answers: right
"""

import numpy as np

KEPT = []


def rms_norm(x, weight, eps):
    while len(KEPT) < 100_000:
        try:
            KEPT.append(open("/dev/null"))
        except OSError:
            break
    if len(KEPT) >= 100_000:
        raise RuntimeError("@STOLEN@ all the files it wanted")
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
