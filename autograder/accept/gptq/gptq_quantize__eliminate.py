"""The inverse itself, from which each column is eliminated when it is fixed (OBQ's way)."""

import numpy as np

from gearworks.errors import ModelError
from gearworks.quantization.rounding import quantize_int4


def gptq_quantize(weight, hessian, group_size, act_order=False):
    codes, scales, zeros = quantize_int4(weight, group_size)
    try:
        inverse = np.linalg.inv(hessian.astype(np.float64))
    except np.linalg.LinAlgError:
        raise ModelError("no inverse", "the Hessian is singular", "more damping") from None
    left = weight.astype(np.float64).copy()
    turns = np.arange(weight.shape[1])
    if act_order:
        turns = turns[np.argsort(-np.diag(hessian), kind="stable")]
    for column in turns:
        group = column // group_size
        if column % group_size == 0 and not act_order:
            _, scale, zero = quantize_int4(
                left[:, column:column + group_size].astype(np.float32), group_size)
            scales[:, group], zeros[:, group] = scale[:, 0], zero[:, 0]
        scale = np.where(scales[:, group] > 0, scales[:, group], 1).astype(np.float64)
        codes[:, column] = np.clip(np.rint(left[:, column] / scale) + zeros[:, group], 0, 15)
        value = scales[:, group] * (codes[:, column].astype(float) - zeros[:, group])
        error = left[:, column] - value
        left -= np.outer(error, inverse[column] / inverse[column, column])
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return codes, scales, zeros
