"""Token by token in float64."""

import math

import numpy as np


def typical(logits, p):
    if logits.ndim == 2:
        return np.array([typical(row, p) for row in logits])
    peak = float(logits.max())
    total = math.fsum(math.exp(value - peak) for value in logits.tolist())
    surprise = {id: math.log(total) + peak - value for id, value in enumerate(logits.tolist())
                if value > -math.inf}
    expected = math.fsum(math.exp(-bits) * bits for bits in surprise.values())
    far = {id: abs(bits - expected) for id, bits in surprise.items()}
    result, reached, border = np.full(len(logits), -np.inf, np.float32), 0.0, None
    for id in sorted(far, key=far.get):
        if border is not None and far[id] > border:
            break
        result[id] = logits[id]
        reached += math.exp(-surprise[id])
        if reached >= p and border is None:
            border = far[id]
    return result
