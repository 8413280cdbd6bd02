"""In PyTorch, in float64; only what the others get is float32."""

import torch


def column_linear(x, weight, bias=None, all_gather=None):
    x, weight = (torch.from_numpy(array).double() for array in (x, weight))
    bias = None if bias is None else torch.from_numpy(bias).double()
    own = torch.nn.functional.linear(x, weight, bias).float().numpy()
    if all_gather is None:
        return own
    return torch.cat([torch.from_numpy(part) for part in all_gather(own)], dim=1).numpy()


def row_linear(x, weight, all_reduce, bias=None):
    x, weight = (torch.from_numpy(array).double() for array in (x, weight))
    summed = torch.from_numpy(all_reduce((x @ weight.T).float().numpy()))
    return summed.numpy() if bias is None else (summed + torch.from_numpy(bias)).numpy()
