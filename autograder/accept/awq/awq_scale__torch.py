"""In PyTorch, for what it has."""

import numpy as np
import torch

from gearworks.errors import ModelError
from gearworks.quantization.rounding import int4_codes


def awq_scale(weight, inputs, group_size, grid=20):
    x, w = torch.tensor(np.array(inputs)), torch.tensor(np.array(weight))
    if not torch.isfinite(x).all():
        raise ModelError("cannot scale", "an input is not finite", "")
    size = x.abs().mean(0)
    size = size.clamp(min=1e-4 * size.max().item())
    best = (float("inf"), torch.ones_like(size))
    if size.max() == 0:
        return best[1].numpy()
    for step in range(grid):
        scale = size.pow(step / grid)
        scale = scale / (scale.max() * scale.min()).sqrt()
        rounded = torch.from_numpy(int4_codes((w * scale).numpy(), group_size).dequantize())
        error = ((x @ (rounded / scale - w).T) ** 2).sum().item()
        if error < best[0]:
            best = (error, scale)
    return best[1].numpy()
