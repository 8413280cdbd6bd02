"""Head by head, with Python's numbers."""

import numpy as np


def alibi_slopes(num_heads):
    power = 1
    while power * 2 <= num_heads:
        power *= 2
    slopes = np.empty(num_heads, np.float32)
    for head in range(num_heads):
        # in the series of 2P heads
        steps = 2 * (head + 1) if head < power else 2 * (head - power) + 1
        slopes[head] = 2 ** (-4 * steps / power)
    return slopes
