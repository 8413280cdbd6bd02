"""Heads in the outer loop, tiles of queries in the inner one, and a generator of keys."""

import numpy as np

from gearworks.kernels.flash import Partial, online_softmax


def tiles(first, end, size):
    while first < end:
        yield first, min(first + size, end)
        first += size


def flash_attention_tiled(q, k, v, out, window=None):
    (T, H, d), (S, K, e) = q.shape, v.shape
    for head in range(K):
        heads = slice(head * H // K, (head + 1) * H // K)
        for start, stop in tiles(0, T, q.tile):
            queries = q[start:stop, heads]
            count = queries.shape[1]
            flat = queries.reshape(-1, d)
            at = np.repeat(np.arange(start, stop) + S - T, count)
            state = Partial.nothing(len(flat), e)
            begin = 0 if window is None else max(0, at[0] - window + 1)
            for low, high in tiles(int(begin), int(at[-1]) + 1, k.tile):
                keys = np.arange(low, high)
                hidden = keys > at[:, None]
                if window is not None:
                    hidden |= keys <= at[:, None] - window
                scores = flat @ k[low:high, head].T / np.float32(d) ** np.float32(0.5)
                scores = np.where(hidden, np.float32("-inf"), scores)
                state = online_softmax(state, scores, v[low:high, head])
            out[start:stop, heads] = state.result().reshape(stop - start, count, e)
