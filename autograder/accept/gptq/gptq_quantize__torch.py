"""In PyTorch, sorted beforehand and put back at the end."""

import numpy as np
import torch

from gearworks.quantization.gptq import inverse_factor
from gearworks.quantization.rounding import quantize_int4


def gptq_quantize(weight, hessian, group_size, act_order=False):
    _, scales, zeros = quantize_int4(weight, group_size)
    n = weight.shape[1]
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(n)
    upper = torch.from_numpy(inverse_factor(hessian[order][:, order]).copy())
    w = torch.from_numpy(weight[:, order].astype(np.float64))
    found = torch.empty_like(w)
    for j in range(n):
        group = order[j] // group_size
        if not act_order and j % group_size == 0:
            part = w[:, j:j + group_size].float().numpy()
            found_scale = quantize_int4(np.ascontiguousarray(part), group_size)
            scales[:, group], zeros[:, group] = found_scale[1][:, 0], found_scale[2][:, 0]
        scale = torch.from_numpy(scales[:, group].astype(np.float64))
        zero = torch.from_numpy(zeros[:, group].astype(np.float64))
        safe = torch.where(scale > 0, scale, 1.0)
        found[:, j] = (torch.round(w[:, j] / safe) + zero).clamp(0, 15)
        error = (w[:, j] - (found[:, j] - zero) * scale) / upper[j, j]
        w[:, j + 1:] -= torch.outer(error, upper[j, j + 1:])
    codes = np.empty(weight.shape, np.uint8)
    codes[:, order] = found.to(torch.uint8).numpy()
    return codes, scales, zeros
