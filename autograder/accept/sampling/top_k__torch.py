"""With torch.topk."""

import torch


def top_k(logits, k):
    x = torch.from_numpy(logits)
    best = torch.topk(x, min(k, x.shape[-1]), dim=-1).values
    return x.masked_fill(x < best[..., -1:], float("-inf")).numpy()
