"""In PyTorch, unfolded into groups."""

import numpy as np
import torch

from gearworks.quantization.rounding import require_finite, require_groups


def quantize_int4(weight, group_size):
    require_finite(weight)
    require_groups(weight, group_size)
    x = torch.tensor(np.array(weight, np.float64)).unfold(1, group_size, group_size)
    low, high = x.amin(-1).clamp(max=0), x.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).float()
    wide = scales.double().masked_fill(scales == 0, 1)
    zeros = torch.round(-low / wide).clamp(0, 15)
    codes = (torch.round(x / wide[..., None]) + zeros[..., None]).clamp(0, 15)
    return (codes.reshape(weight.shape).to(torch.uint8).numpy(), scales.numpy(),
            zeros.to(torch.uint8).numpy())


def pack_int4(codes):
    even, odd = codes[..., 0::2], codes[..., 1::2]
    if even.shape != odd.shape:
        raise ValueError(f"{codes.shape[-1]} codes")
    if codes.size and int(codes.max()) > 0xF:
        raise ValueError("a code needs more than four bits")
    return np.bitwise_or(even, np.left_shift(odd, 4))
