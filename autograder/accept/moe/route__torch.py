"""In PyTorch, with a stable sort."""

import torch


def route(scores, k, normalize):
    shares = torch.softmax(torch.from_numpy(scores), dim=-1)
    weights, experts = torch.sort(shares, dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :k], experts[:, :k]
    if normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts.numpy(), weights.numpy()
