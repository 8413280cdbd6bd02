"""Sequence by sequence, a view of each block, and the mask over all of them."""

import numpy as np

from gearworks.attention import PLAIN, attention_over_views, causal_mask


def paged_attention(q, keys, values, block_tables, context_lens, query_lens, rules=PLAIN):
    size, start = keys.shape[2], 0
    out = np.zeros((len(q), q.shape[1], values.shape[-1]), np.float32)
    for table, length, count in zip(block_tables, context_lens, query_lens):
        if count == 0:
            continue
        views = [[memory[:, block, :length - place * size]
                  for place, block in enumerate(table[:-(-length // size)])]
                 for memory in (keys, values)]
        out[start:start + count] = attention_over_views(
            q[start:start + count], *views, causal_mask(count, length, rules.window), rules)
        start += count
    return out
