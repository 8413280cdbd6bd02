"""With the engine's `sample`, and the surprise from a second look at the whole."""

import numpy as np

from gearworks.layers import softmax
from gearworks.sampling import refuse_unusable, sample


def mirostat(logits, mu, tau, eta, rng):
    refuse_unusable(logits)
    probabilities = softmax(logits).astype(np.float64)
    allowed = probabilities >= 2.0 ** -mu
    allowed |= logits == logits.max()
    token = sample(np.where(allowed, logits, np.float32(-np.inf)), rng)
    surprise = np.log2(probabilities[allowed].sum() / probabilities[token])
    return token, mu - eta * (float(surprise) - tau)
