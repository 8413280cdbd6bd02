"""Cut into q, k and v first, then into heads."""

import numpy as np


def split_heads(qkv, num_heads, num_kv_heads):
    d = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
    q, k, v = np.split(qkv, [num_heads * d, (num_heads + num_kv_heads) * d], axis=1)
    return tuple(part.reshape(len(qkv), part.shape[1] // d, d) for part in (q, k, v))
