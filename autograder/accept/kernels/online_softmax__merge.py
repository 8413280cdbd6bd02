"""The tile by itself first, then both by what each is worth."""

import numpy as np

from gearworks.kernels.flash import Partial
from gearworks.layers import LOWEST


def online_softmax(before, scores, values):
    own = np.max(scores, axis=1, initial=-np.inf).astype(np.float32)
    shifted = scores - np.maximum(own, LOWEST)[:, None]
    weights = np.exp(shifted)
    peak = np.maximum(own, before.peak)
    floor = np.maximum(peak, LOWEST)
    mine, theirs = np.exp(own - floor), np.exp(before.peak - floor)
    return Partial(peak, mine * weights.sum(1) + theirs * before.total,
                   mine[:, None] * (weights @ values) + theirs[:, None] * before.mixed)
