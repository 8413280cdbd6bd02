"""A list of all candidates, sorted."""

import numpy as np

from gearworks.beam import Hypothesis


def best_continuations(running, logprobs, count):
    every = []
    for beam, hypothesis in enumerate(running):
        for token in range(logprobs.shape[1]):
            every.append((float(np.float32(hypothesis.score) + logprobs[beam, token]), beam,
                          token))
    every.sort(key=lambda entry: -entry[0])
    return [(beam, Hypothesis(running[beam].ids + (token,), score))
            for score, beam, token in every[:count]]
