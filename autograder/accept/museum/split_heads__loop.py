"""Head by head."""

import numpy as np


def split_heads(qkv, num_heads, num_kv_heads):
    count = num_heads + 2 * num_kv_heads
    d = qkv.shape[1] // count
    heads = [qkv[:, head * d:(head + 1) * d] for head in range(count)]
    return (np.stack(heads[:num_heads], axis=1),
            np.stack(heads[num_heads:num_heads + num_kv_heads], axis=1),
            np.stack(heads[num_heads + num_kv_heads:], axis=1))
