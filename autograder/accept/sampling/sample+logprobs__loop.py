"""Walks along the line until the point is reached."""

import math

import numpy as np

from gearworks.sampling import TokenLogprob, log_softmax, refuse_unusable


def sample(logits, rng):
    refuse_unusable(logits)
    peak = float(logits.max())
    powers = [math.exp(value - peak) for value in logits.tolist()]
    point = rng.random() * math.fsum(powers)
    for id, power in enumerate(powers):
        point -= power
        if point < 0:
            return id
    return int(np.argmax(logits))


def logprobs(logits, token, top=0):
    numbers = log_softmax(logits).tolist()
    order = np.lexsort((np.arange(len(numbers)), -np.array(numbers)))
    return TokenLogprob(int(token), numbers[token],
                        tuple((int(id), numbers[id]) for id in order[:top]))
