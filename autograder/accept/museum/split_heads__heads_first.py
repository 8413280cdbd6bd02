"""By way of heads first, with a true transpose."""

import numpy as np


def split_heads(qkv, num_heads, num_kv_heads):
    d = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
    heads_first = np.ascontiguousarray(qkv.T).reshape(num_heads + 2 * num_kv_heads, d,
                                                      len(qkv)).transpose(0, 2, 1)
    q, k = heads_first[:num_heads], heads_first[num_heads:-num_kv_heads]
    return [np.ascontiguousarray(part.swapaxes(0, 1))
            for part in (q, k, heads_first[-num_kv_heads:])]
