"""Row by row, token by token."""

import math

import numpy as np


def min_p(logits, p):
    rows = []
    for row in np.atleast_2d(logits).tolist():
        best = max(row)
        rows.append([value if math.exp(value - best) >= p else -math.inf for value in row])
    return np.array(rows, dtype=np.float32).reshape(logits.shape)
