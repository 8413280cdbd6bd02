"""Every column's error goes to all that are left at once, in float64."""

import numpy as np

from gearworks.quantization.gptq import inverse_factor
from gearworks.quantization.rounding import quantize_int4


def gptq_quantize(weight, hessian, group_size, act_order=False):
    codes, scales, zeros = quantize_int4(weight, group_size)
    columns = weight.shape[1]
    order = np.argsort(-hessian.diagonal(), kind="stable") if act_order else range(columns)
    order = list(order)
    factor = inverse_factor(hessian[order][:, order])
    left = weight.astype(np.float64)
    for turn, column in enumerate(order):
        group = column // group_size
        if not act_order and column % group_size == 0:
            part = left[:, column:column + group_size].astype(np.float32)
            _, scales[:, [group]], zeros[:, [group]] = quantize_int4(part, group_size)
        scale, zero = scales[:, group].astype(np.float64), zeros[:, group].astype(np.float64)
        quotient = np.divide(left[:, column], scale, out=np.zeros(len(weight)),
                             where=scale > 0)
        code = (np.round(quotient) + zero).clip(0, 15)
        codes[:, column] = code
        error = (left[:, column] - scale * (code - zero)) / factor[turn, turn]
        left[:, order[turn + 1:]] -= error[:, None] * factor[turn, turn + 1:]
    return codes, scales, zeros
