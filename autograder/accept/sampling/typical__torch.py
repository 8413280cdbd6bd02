"""As Hugging Face writes it."""

import torch


def typical(logits, p):
    x = torch.from_numpy(logits)
    normed = torch.log_softmax(x, dim=-1)
    entropy = -(normed * normed.exp()).nansum(-1, keepdim=True)
    shifted = ((-normed) - entropy).abs()
    ascending, order = torch.sort(shifted, stable=True, dim=-1)
    sums = x.gather(-1, order).softmax(dim=-1).cumsum(dim=-1)
    last = (sums < p).sum(dim=-1, keepdim=True).clamp(max=sums.shape[-1] - 1)
    return x.masked_fill(shifted > ascending.gather(-1, last), float("-inf")).numpy()
