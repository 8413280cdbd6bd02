"""By PyTorch's operator, its nan replaced."""

import numpy as np
import torch


def softmax(x, out=None):
    result = torch.nan_to_num(torch.softmax(torch.from_numpy(np.ascontiguousarray(x)), dim=-1),
                              nan=0.0).numpy()
    if out is None:
        return result
    out[:] = result
    return out
