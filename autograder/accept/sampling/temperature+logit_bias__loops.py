"""Number by number."""

import numpy as np

from gearworks.errors import ModelError


def temperature(logits, value):
    flat = [number / value for number in logits.ravel().tolist()]
    return np.array(flat, dtype=np.float32).reshape(logits.shape)


def logit_bias(logits, bias):
    result = np.array(logits)
    for id, number in bias.items():
        if id < 0 or id >= logits.shape[-1]:
            raise ModelError("no such token", f"the id is {id}", "look at the vocabulary")
        for row in np.atleast_2d(result):
            row[id] = row[id] + number
    return result
