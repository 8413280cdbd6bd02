"""One token of a set after the other."""


import numpy as np


def repetition_penalty(logits, penalty, ids):
    if logits.ndim == 2:
        return np.array([repetition_penalty(row, penalty, text)
                         for row, text in zip(logits, ids)])
    result = logits.copy()
    for id in set(ids):
        if result[id] > 0:
            result[id] /= penalty
        else:
            result[id] *= penalty
    return result
