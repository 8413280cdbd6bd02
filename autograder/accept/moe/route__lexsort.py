"""With lexsort, and the softmax written out."""

import numpy as np


def route(scores, k, normalize):
    numbers = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.lexsort((numbers, -scores), axis=-1)[:, :k]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    chosen = np.array([row[best] for row, best in zip(powers, order)],
                      np.float32).reshape(len(scores), k)
    whole = (chosen.sum(axis=1, keepdims=True) if normalize
             else powers.sum(axis=1, keepdims=True))
    return order, chosen / whole
