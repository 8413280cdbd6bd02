"""By PyTorch's own operator."""

import numpy as np
import torch


def linear(x, weight, bias=None):
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (x, weight)]
    if bias is not None:
        tensors.append(torch.from_numpy(bias))
    return torch.nn.functional.linear(*tensors).numpy()
