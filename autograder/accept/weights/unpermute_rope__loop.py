"""Head by head, every second row."""

import numpy as np


def unpermute_rope(weight, num_heads):
    out = np.empty_like(weight)
    size = weight.shape[0] // num_heads
    half = size // 2
    for start in range(0, weight.shape[0], size):
        head = weight[start:start + size]
        out[start:start + half] = head[::2]
        out[start + half:start + size] = head[1::2]
    return out
