"""Token by token, in float64."""

import numpy as np

from gearworks.errors import ModelError


def gptq_hessian(inputs, damping=0.01):
    if not np.isfinite(inputs).all() or not np.count_nonzero(inputs):
        raise ModelError("cannot use these inputs", "they are not finite, or all zero", "")
    size = inputs.shape[1]
    total = np.zeros((size, size))
    for row in inputs.astype(np.float64):
        total += np.outer(row, row)
    total *= 2 / len(inputs)
    total += np.eye(size) * (damping * np.trace(total) / size)
    return total.astype(np.float32)
