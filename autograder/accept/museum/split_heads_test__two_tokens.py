"""Two tokens, written out."""

import numpy as np


def split_heads_test(split_heads):
    first = np.arange(1, 13, dtype=np.float32)
    q, k, v = split_heads(np.stack([first, first + 20]), 2, 2)
    if q.tolist() != [[[1, 2], [3, 4]], [[21, 22], [23, 24]]]:
        raise AssertionError(f"q is {q.tolist()}")
    if k.tolist() != [[[5, 6], [7, 8]], [[25, 26], [27, 28]]]:
        raise AssertionError(f"k is {k.tolist()}")
    if v.tolist() != [[[9, 10], [11, 12]], [[29, 30], [31, 32]]]:
        raise AssertionError(f"v is {v.tolist()}")
