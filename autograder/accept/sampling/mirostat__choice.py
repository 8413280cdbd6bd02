"""In bits from the beginning, drawn with the generator's own `choice`."""

import numpy as np

from gearworks.sampling import refuse_unusable


def mirostat(logits, mu, tau, eta, rng):
    refuse_unusable(logits)
    bits = (logits.astype(np.float64) - logits.max()) / np.log(2)
    bits -= np.log2(np.exp2(bits).sum())
    kept = np.flatnonzero((-bits <= mu) | (bits == bits.max()))
    probabilities = np.exp2(bits[kept])
    probabilities /= probabilities.sum()
    place = int(rng.choice(len(kept), p=probabilities))
    error = -np.log2(probabilities[place]) - tau
    return int(kept[place]), float(mu - eta * error)
