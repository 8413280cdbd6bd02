"""As Hugging Face writes it."""

import torch


def top_p(logits, p):
    x = torch.from_numpy(logits)
    ascending, order = torch.sort(x, dim=-1, stable=True)
    gone = torch.softmax(ascending, dim=-1).cumsum(dim=-1) <= 1 - p
    gone[..., -1] = False
    return x.masked_fill(torch.zeros_like(gone).scatter(-1, order, gone), float("-inf")).numpy()
