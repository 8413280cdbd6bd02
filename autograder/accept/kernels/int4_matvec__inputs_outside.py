"""Input after input, each added to all sixteen lanes."""

import numpy as np

from gearworks.kernels.cpu.compiling import compiled


@compiled
def int4_matvec(words, scales, minimums, x, y):
    for block in range(len(words)):
        out = y[16 * block:16 * block + 16]
        out[:] = 0
        for group in range(scales.shape[1]):
            for place in range(32):
                value = x[32 * group + place]
                word, byte, high = place // 8, place % 4, place % 8 > 3
                for lane in range(16):
                    code = words[block, group, word, lane] >> 8 * byte
                    code = (code >> 4 if high else code) & 15
                    out[lane] += value * (scales[block, group, lane] * np.float32(code)
                                          + minimums[block, group, lane])
