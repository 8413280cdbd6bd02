"""One sort of the whole table."""

import numpy as np

from gearworks.beam import Hypothesis


def best_continuations(running, logprobs, count):
    B, V = logprobs.shape
    table = logprobs + np.float32([hypothesis.score for hypothesis in running]).reshape(B, 1)
    flat = table.reshape(-1)
    order = np.lexsort((np.arange(B * V), -flat))[:count]
    return [(int(i // V),
             Hypothesis(tuple(running[i // V].ids) + (int(i % V),), float(flat[i])))
            for i in order]
