"""Token by token."""

import math

import numpy as np

from gearworks.sampling import log_softmax


def contrastive_decoding(expert, amateur, alpha=0.1):
    mine, theirs = log_softmax(expert).tolist(), log_softmax(amateur).tolist()
    border = max(mine) + math.log(alpha)
    return np.array([a - b if a >= border else -math.inf for a, b in zip(mine, theirs)],
                    dtype=np.float32)
