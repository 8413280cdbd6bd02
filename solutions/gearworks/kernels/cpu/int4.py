"""A matrix of four bits times a vector, read once and never expanded.

Shapes: a block is 16 outputs, a group 32 inputs; the layout is that of `layout`.
"""

import numpy as np

from gearworks.kernels.cpu.compiling import compiled


@compiled
def int4_matvec(words, scales, minimums, x, y):
    """Multiply a matrix in codes of four bits by a vector, and write the result to y.

    words: (blocks, groups, 4, 16) uint32. `words[b, g, w, lane]` belongs to output 16 b + lane
    and holds its codes for the eight inputs from 32 g + 8 w on: the low four bits of byte j are
    the code of input j, the high four bits that of input j + 4. scales, minimums: (blocks,
    groups, 16) float32; a weight is scale · code + minimum. x: (32 · groups,) float32; y:
    (16 · blocks,) float32, overwritten.

    Compiled by Numba: plain loops over numbers, no temporary arrays. The matrix is read once,
    in the order in which it lies.

    >>> words = np.full((1, 1, 4, 16), 0x20, np.uint32)       # input 4 of 8 has the code 2
    >>> scales, minimums = np.full((2, 1, 1, 16), 0.5, np.float32)
    >>> y = np.empty(16, np.float32)
    >>> int4_matvec(words, scales, minimums, np.ones(32, np.float32), y)
    >>> y[0]
    np.float32(20.0)
    """
    blocks, groups = scales.shape[:2]
    for block in range(blocks):
        for lane in range(16):
            y[16 * block + lane] = 0
        for group in range(groups):
            inputs = x[32 * group:32 * group + 32]
            sum_of_inputs = np.float32(0)
            for value in inputs:
                sum_of_inputs += value
            # one sum of products for each lane: the compiler computes all of them at once
            for lane in range(16):
                total = np.float32(0)
                for word in range(4):
                    codes = words[block, group, word, lane]
                    for byte in range(4):
                        total += inputs[8 * word + byte] * np.float32(
                            np.int32(codes >> 8 * byte & 15))
                        total += inputs[8 * word + byte + 4] * np.float32(
                            np.int32(codes >> 8 * byte + 4 & 15))
                y[16 * block + lane] += (scales[block, group, lane] * total
                                         + minimums[block, group, lane] * sum_of_inputs)
