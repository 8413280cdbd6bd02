"""From the likeliest token down; logarithms by torch."""

import torch

import numpy as np

from gearworks.sampling import TokenLogprob, refuse_unusable


def sample(logits, rng):
    refuse_unusable(logits)
    order = np.argsort(-logits)
    ends = torch.softmax(torch.from_numpy(logits[order]).double(), dim=0).cumsum(0)
    point = rng.random() * float(ends[-1])
    return int(order[min(int((ends <= point).sum()), len(order) - 1)])


def logprobs(logits, token, top=0):
    numbers = torch.log_softmax(torch.from_numpy(logits), dim=0)
    values, ids = torch.sort(numbers, descending=True, stable=True)
    return TokenLogprob(int(token), numbers[token].item(),
                        tuple(zip(ids[:top].tolist(), values[:top].tolist())))
