"""With names for the axes, and a stack of the two halves."""

import numpy as np


def unpermute_rope(weight, num_heads):
    columns = weight.shape[1]
    named = np.einsum("hpbc->hbpc", weight.reshape(num_heads, -1, 2, columns))
    return np.ascontiguousarray(named).reshape(-1, columns)
