"""PyTorch's own cast, behind a clamp."""

import numpy as np
import torch


def fp8_e4m3(x):
    limited = torch.tensor(np.array(x)).clamp(-448, 448)
    return limited.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
