"""A dict of the tokens that are left."""

import math

from gearworks.errors import ModelError


def mirostat(logits, mu, tau, eta, rng):
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise ModelError("nothing to draw from", f"the largest logit is {peak}",
                         "look at the model")
    powers = [math.exp(value - peak) for value in logits.tolist()]
    total = math.fsum(powers)
    best = max(powers)
    left = {id: power for id, power in enumerate(powers)
            if power == best or (power > 0 and -math.log2(power / total) <= mu)}
    rest = math.fsum(left.values())
    point, token = rng.random() * rest, None
    for id, power in left.items():
        if power > 0:
            token = id
            point -= power
            if point < 0:
                break
    return token, mu - eta * (-math.log2(left[token] / rest) - tau)
