"""As Hugging Face writes it, in PyTorch."""

import torch


def rope_frequencies(head_dim, theta):
    return (1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))).numpy()


def apply_rope(x, cos, sin):
    x, cos, sin = (torch.from_numpy(array) for array in (x, cos, sin))
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).numpy()
