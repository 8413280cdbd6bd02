"""By PyTorch, with the sign mended by hand."""

import numpy as np
import torch


def dequantize_q8_0(blocks):
    raw = torch.from_numpy(np.array(blocks))
    scale = raw[:, :2].contiguous().view(torch.float16).float()
    codes = raw[:, 2:].float()
    codes = torch.where(codes > 127, codes - 256, codes)
    return (scale * codes).numpy()
