"""Three integers by hand."""

import numpy as np
import pytest


def zero_points_test(zero_points):
    qzeros = np.array([[0x12345678, 0x0000000F, -1]], np.int32)
    plain = [8, 7, 6, 5, 4, 3, 2, 1] + [15] + [0] * 7 + [15] * 8
    if list(np.asarray(zero_points(qzeros, 2))[0]) != plain:
        pytest.fail("version 2")
    if list(np.asarray(zero_points(qzeros, 1))[0]) != (
            [9, 8, 7, 6, 5, 4, 3, 2] + [0] + [1] * 7 + [0] * 8):
        pytest.fail("version 1")
