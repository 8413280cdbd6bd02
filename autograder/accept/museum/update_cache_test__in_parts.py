"""A law: tokens one by one, in parts or at once end in the same memory,
and the last step sees all of it."""

import numpy as np


def update_cache_test(update_cache):
    k, v = np.random.default_rng(0).standard_normal((2, 6, 3, 4)).astype(np.float32)
    for borders in ([0, 6], [0, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]):
        keys, values = np.full((3, 8, 4), 9, np.float32), np.full((3, 8, 4), 9, np.float32)
        for start, end in zip(borders, borders[1:]):
            seen = update_cache(keys, values, start, k[start:end], v[start:end])
        for memory, part, new in ((keys, seen[0], k), (values, seen[1], v)):
            np.testing.assert_array_equal(part, new.swapaxes(0, 1))
            np.testing.assert_array_equal(memory[:, :6], part)
            assert (memory[:, 6:] == 9).all()
