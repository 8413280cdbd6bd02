"""All random numbers first, then one comparison of arrays."""

import numpy as np


def accept(proposed, draft, target, rng):
    k = len(proposed)
    chances, last = rng.random(k), rng.random()
    places = np.arange(k)
    ids = np.array(proposed, dtype=int)
    given = np.ones(k) if draft is None else draft[places, ids].astype(np.float64)
    stays = chances * given < target[places, ids].astype(np.float64)
    count = k if stays.all() else int(np.argmin(stays))
    weights = target[count].astype(np.float64)
    if count < k and draft is None:
        weights[ids[count]] = 0.0
    elif count < k:
        weights = np.maximum(weights - draft[count], 0.0)
    ends = weights.cumsum()
    return [int(id) for id in ids[:count]] + [int((ends <= last * ends[-1]).sum())]
