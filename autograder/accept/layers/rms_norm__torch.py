"""By PyTorch's own operator."""

import torch


def rms_norm(x, weight, eps):
    y = torch.nn.functional.rms_norm(torch.from_numpy(x), (x.shape[-1],),
                                     torch.from_numpy(weight), eps)
    return y.numpy()
