"""By way of the logarithm of the sum, in float64."""

import numpy as np


def softmax(x, out=None):
    log_sum = np.logaddexp.reduce(x.astype(np.float64), axis=-1, keepdims=True)
    p = np.exp(x - np.where(np.isneginf(log_sum), 0, log_sum)).astype(np.float32)
    if out is not None:
        np.copyto(out, p)
        return out
    return p
