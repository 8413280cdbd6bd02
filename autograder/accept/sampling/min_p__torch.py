"""With torch inside."""

import torch


def min_p(logits, p):
    x = torch.from_numpy(logits)
    probabilities = x.softmax(dim=-1)
    return x.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True),
                         float("-inf")).numpy()
