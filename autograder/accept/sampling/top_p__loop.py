"""Token by token, until it is enough."""

import math

import numpy as np


def top_p(logits, p):
    if logits.ndim == 2:
        return np.array([top_p(row, p) for row in logits])
    peak = max(logits.tolist())
    powers = [math.exp(value - peak) for value in logits.tolist()]
    total, reached = math.fsum(powers), 0.0
    result = np.full(len(logits), -np.inf, np.float32)
    for id in sorted(range(len(powers)), key=lambda id: (logits[id], id), reverse=True):
        result[id] = logits[id]
        reached += powers[id] / total
        if reached >= p:
            return result
    return result
