"""Two rows by hand, with pytest's way to compare."""

import numpy as np
import pytest


def packed_matvec_test(packed_matvec):
    packed = np.array([[0x71, 0x0F], [0x28, 0xE3]], np.uint8)       # 1 7 15 0; 8 2 3 14
    scales = np.array([[1, 10], [0.5, 2]], np.float32)
    zeros = np.array([[4, 0], [9, 5]], np.uint8)
    x = np.array([1, 100, 0.25, 3], np.float32)
    wanted = [-3 + 300 + 150 * 0.25, -0.5 - 350 - 4 * 0.25 + 18 * 3]
    assert packed_matvec(packed, scales, zeros, x).tolist() == pytest.approx(wanted)
