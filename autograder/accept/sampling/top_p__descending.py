"""From the likeliest token down, in float64."""

import numpy as np


def top_p(logits, p):
    out = np.full(logits.shape, -np.inf, dtype=np.float32)
    for row, new in zip(np.atleast_2d(logits), np.atleast_2d(out)):
        powers = np.exp(row.astype(np.float64) - row.max())
        probabilities = powers / powers.sum()
        order = np.argsort(row, kind="stable")[::-1]
        before = np.cumsum(probabilities[order]) - probabilities[order]
        kept = order[before < p - 1e-9]
        new[kept] = row[kept]
        new[order[0]] = row[order[0]]
    return out
