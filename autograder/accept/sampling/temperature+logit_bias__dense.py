"""The bias as a whole row of the vocabulary."""

import numpy as np

from gearworks.errors import ModelError


def temperature(logits, value):
    return (np.multiply(logits, 1 / value, dtype=np.float32) if value >= 1
            else np.divide(logits, value, dtype=np.float32))


def logit_bias(logits, bias):
    row = np.zeros(logits.shape[-1], np.float32)
    for id in bias:
        if id not in range(len(row)):
            raise ModelError("cannot add a bias", f"{id} is no token", "ids are small numbers")
        row[id] = bias[id]
    return logits + row
