"""Row by row, with slices."""

import numpy as np


def causal_mask(T, S, window=None):
    mask = np.zeros((T, S), dtype=bool)
    for row in range(T):
        end = S - T + row + 1
        mask[row, 0 if window is None else max(0, end - window):end] = True
    return mask
