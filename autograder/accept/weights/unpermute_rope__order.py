"""By a list of row numbers."""

import numpy as np


def unpermute_rope(weight, num_heads):
    size = len(weight) // num_heads
    order = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])
    return weight[(np.arange(num_heads)[:, None] * size + order).ravel()]
