"""Vectorised, in float64, with a threshold."""

import numpy as np


def typical(logits, p):
    rows = np.atleast_2d(logits).astype(np.float64)
    peak = rows.max(axis=-1, keepdims=True)
    logarithms = rows - peak - np.log(np.exp(rows - peak).sum(axis=-1, keepdims=True))
    possible = np.isfinite(rows)
    probabilities = np.where(possible, np.exp(logarithms), 0)
    entropy = -np.sum(probabilities * np.where(possible, logarithms, 0), axis=-1, keepdims=True)
    distance = np.where(possible, np.abs(logarithms + entropy), np.inf)
    order = np.argsort(distance, axis=-1, kind="stable")
    sums = np.take_along_axis(probabilities, order, -1).cumsum(axis=-1)
    last = np.minimum((sums < p - 1e-9).sum(axis=-1, keepdims=True),
                      possible.sum(axis=-1, keepdims=True) - 1)
    border = np.take_along_axis(np.take_along_axis(distance, order, -1), last, -1)
    return np.where(distance <= border + 1e-12, rows,
                    -np.inf).astype(np.float32).reshape(logits.shape)
