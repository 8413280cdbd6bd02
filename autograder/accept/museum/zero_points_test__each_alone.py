"""One zero point after the other, all others 0."""

import numpy as np


def zero_points_test(zero_points):
    for place in range(8):
        for code in range(16):
            word = np.array([[code << 4 * place]], np.uint32).view(np.int32)
            for version, others in ((2, 0), (1, 1)):
                got = np.asarray(zero_points(word, version)).tolist()
                right = [others] * 8
                right[place] = (code + others) & 15
                assert got == [right], (place, code, version)
