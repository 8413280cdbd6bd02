"""By the digits of the number in hexadecimal, from the last to the first."""

import numpy as np

STORED = {1: "f0123456789abcde", 2: "0123456789abcdef"}


def zero_points(qzeros, version):
    digits = [["".join(reversed(f"{int(word) & 0xFFFFFFFF:08x}")) for word in row]
              for row in qzeros]
    return np.array([[STORED[version].index(digit) for digit in "".join(row)]
                     for row in digits], np.uint8)
