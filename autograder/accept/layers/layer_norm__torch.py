"""By PyTorch's operator."""

import torch


def layer_norm(x, weight, bias, eps):
    x, weight, bias = (torch.from_numpy(array) for array in (x, weight, bias))
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps).numpy()
