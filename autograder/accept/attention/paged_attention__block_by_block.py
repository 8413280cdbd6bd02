"""Query by query, the blocks as views."""

import numpy as np

from gearworks.attention import PLAIN, attention_over_views


def paged_attention(q, keys, values, block_tables, context_lens, query_lens, rules=PLAIN):
    size, rows = keys.shape[2], []
    for table, length, count in zip(block_tables, context_lens, query_lens):
        for token in range(length - count, length):
            first = 0 if rules.window is None else max(0, token + 1 - rules.window)
            views = [[], []]
            for place in range(first // size, token // size + 1):
                begin = max(first - place * size, 0)
                end = min(token + 1 - place * size, size)
                for view, memory in zip(views, (keys, values)):
                    view.append(memory[:, table[place], begin:end])
            query = q[len(rows):len(rows) + 1]
            rows.append(attention_over_views(query, *views, None, rules)[0])
    empty = np.empty((0, q.shape[1], values.shape[-1]), np.float32)
    return np.array(rows, np.float32).reshape(-1, *empty.shape[1:])
