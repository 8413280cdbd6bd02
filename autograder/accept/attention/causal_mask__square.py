"""The last rows of the square that training uses."""

import numpy as np


def causal_mask(T, S, window=None):
    square = np.tril(np.ones((S, S), bool))
    if window is not None:
        square = np.triu(square, 1 - window)
    return square[S - T:]
