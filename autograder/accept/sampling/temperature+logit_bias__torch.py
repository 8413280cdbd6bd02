"""With torch inside."""

import torch

from gearworks.errors import ModelError


def temperature(logits, value):
    return (torch.from_numpy(logits) / value).numpy()


def logit_bias(logits, bias):
    out = torch.from_numpy(logits).clone()
    if any(not 0 <= id < out.shape[-1] for id in bias):
        raise ModelError("a token is unknown", "the vocabulary ends before it", "check the ids")
    if bias:
        ids, numbers = zip(*bias.items())
        out[..., list(ids)] += torch.tensor(numbers, dtype=torch.float32)
    return out.numpy()
