"""With NumPy's own mean and variance."""

import numpy as np


def layer_norm(x, weight, bias, eps):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return weight * ((x - mean) * (1 / np.sqrt(variance + np.float32(eps)))) + bias
