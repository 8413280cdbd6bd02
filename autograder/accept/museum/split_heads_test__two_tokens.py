"""Two tokens, written out."""

import numpy as np


def split_heads_test(split_heads):
    rows = np.array([[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15, 16, 17, 18]], np.float32)
    q, k, v = split_heads(rows, 2, 1)
    if q.tolist() != [[[1, 2], [3, 4]], [[11, 12], [13, 14]]]:
        raise AssertionError(f"q is {q.tolist()}")
    if k.tolist() != [[[5, 6]], [[15, 16]]] or v.tolist() != [[[7, 8]], [[17, 18]]]:
        raise AssertionError(f"k is {k.tolist()}, v is {v.tolist()}")
