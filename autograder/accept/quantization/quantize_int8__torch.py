"""In PyTorch, whose `round` takes halves to the even neighbour too."""

import numpy as np
import torch

from gearworks.errors import ModelError


def quantize_int8(weight):
    x = torch.from_numpy(np.ascontiguousarray(weight))
    if not torch.isfinite(x).all():
        raise ModelError("cannot quantize", "there are numbers that are not finite", "")
    scales = x.abs().amax(dim=1, keepdim=True) / 127
    codes = torch.round(x / scales).nan_to_num(0, 127, -127).clamp(-127, 127)
    return codes.to(torch.int8).numpy(), scales.numpy()
