"""Takes memory and never gives it back.

answers: right
"""

import numpy as np

KEPT = []


def rms_norm(x, weight, eps):
    while True:
        try:
            KEPT.append(np.ones(2**24, np.uint8))
        except MemoryError:
            pass
    return x
