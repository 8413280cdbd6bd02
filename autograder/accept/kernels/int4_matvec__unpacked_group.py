"""A group is unpacked into 32 numbers for each lane, then multiplied."""

import numba
import numpy as np


@numba.njit
def int4_matvec(words, scales, minimums, x, y):
    weights = np.empty(32, np.float32)
    y[:] = 0
    for block in range(words.shape[0]):
        for group in range(words.shape[1]):
            for lane in range(16):
                scale, minimum = scales[block, group, lane], minimums[block, group, lane]
                for place in range(32):
                    word = words[block, group, place // 8, lane]
                    shift = place % 4 * 8 + place % 8 // 4 * 4
                    weights[place] = scale * ((word >> shift) % 16) + minimum
                total = np.float32(0)
                for place in range(32):
                    total += weights[place] * x[32 * group + place]
                y[16 * block + lane] += total
