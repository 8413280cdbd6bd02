"""By comparing the positions of queries and keys."""

import numpy as np


def causal_mask(T, S, window=None):
    query, key = np.arange(S - T, S)[:, None], np.arange(S)[None, :]
    return (key <= query) & (query - key < (S + 1 if window is None else window))
