"""Each sequence's keys gathered into one array, and given to attention."""

import numpy as np

from gearworks.attention import PLAIN, attention_over_views, causal_mask


def paged_attention(q, keys, values, block_tables, context_lens, query_lens, rules=PLAIN):
    size, start = keys.shape[2], 0
    out = np.zeros((len(q), q.shape[1], values.shape[-1]), np.float32)
    for table, length, count in zip(block_tables, context_lens, query_lens):
        if count == 0:
            continue
        tokens = np.arange(length)
        blocks = np.array(table)[tokens // size]
        k, v = (x[:, blocks, tokens % size] for x in (keys, values))
        mask = causal_mask(count, length, rules.window)
        out[start:start + count] = attention_over_views(q[start:start + count], [k], [v], mask,
                                                        rules)
        start += count
    return out
