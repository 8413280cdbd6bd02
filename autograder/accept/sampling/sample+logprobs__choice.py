"""With the generator's own `choice`, which uses one number, and a sort with a key."""

import numpy as np

from gearworks.errors import ModelError
from gearworks.sampling import TokenLogprob


def sample(logits, rng):
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        raise ModelError("there is no distribution", "the logits are broken",
                         "look where they come from")
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return int(rng.choice(len(logits), p=powers / powers.sum()))


def logprobs(logits, token, top=0):
    x = logits.astype(np.float64)
    x = x - x.max() - np.log(np.exp(x - x.max()).sum())
    best = sorted(range(len(x)), key=lambda id: (-x[id], id))[:top]
    return TokenLogprob(token, float(x[token]), tuple((id, float(x[id])) for id in best))
