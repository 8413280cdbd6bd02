"""Prints without end.

answers: right
"""

import os



def rms_norm(x, weight, eps):
    while True:
        print("x" * 2**20)
        os.write(1, b"x" * 2**20)
    return x
