"""In PyTorch, from one series of twice the length."""

import torch


def alibi_slopes(num_heads):
    power = 2 ** (len(bin(num_heads)) - 3)
    twice = torch.logspace(-4 / power, -8, 2 * power, base=2.0, dtype=torch.float64)
    return torch.cat([twice[1::2], twice[::2]])[:num_heads].float().numpy()
