"""As it was published: by recursion."""

import math

import numpy as np


def alibi_slopes(num_heads):
    def series(n):
        start = 2 ** -(2 ** -(math.log2(n) - 3))
        return [start * start ** i for i in range(n)]

    nearest = 2 ** math.floor(math.log2(num_heads))
    if nearest == num_heads:
        return np.array(series(num_heads), np.float32)
    return np.concatenate([alibi_slopes(nearest),
                           np.float32(series(2 * nearest)[::2][:num_heads - nearest])])
