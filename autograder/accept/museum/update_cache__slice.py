"""With a slice object and NumPy's copyto."""

import numpy as np


def update_cache(keys, values, length, k, v):
    end = length + len(k)
    np.copyto(keys[:, length:end], np.moveaxis(k, 0, 1))
    np.copyto(values[:, length:end], np.moveaxis(v, 0, 1))
    return tuple(memory[:, :end] for memory in (keys, values))
