"""One head of size one, so that everything can be read as lists."""

import numpy as np


def update_cache_test(update_cache):
    keys, values = np.zeros((1, 5, 1), np.float32), np.zeros((1, 5, 1), np.float32)
    stored = []
    for new in ([1, 2], [3], [4]):
        k = np.array(new, np.float32).reshape(-1, 1, 1)
        seen_keys, seen_values = update_cache(keys, values, len(stored), k, -k)
        stored += new
        assert np.ravel(seen_keys).tolist() == stored
        assert np.ravel(seen_values).tolist() == [-number for number in stored]
        assert np.ravel(keys).tolist() == stored + [0] * (5 - len(stored))
        assert np.ravel(values).tolist() == [-number
                                             for number in stored] + [0] * (5 - len(stored))
