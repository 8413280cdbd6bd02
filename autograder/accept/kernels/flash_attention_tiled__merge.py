"""Every tile of keys by itself; the parts are merged at the end."""

import numpy as np

from gearworks.attention import causal_mask
from gearworks.kernels.flash import Partial, merge, online_softmax


def flash_attention_tiled(q, k, v, out, window=None):
    T, H, d = q.shape
    S, K, size = v.shape
    mask = causal_mask(T, S, window) if T * S < 2**14 else None
    for first in range(0, T, q.tile):
        last = min(T, first + q.tile)
        low = 0 if window is None else max(0, S - T + first - window + 1)
        high = S - T + last
        for head in range(K):
            own = slice(head * H // K, (head + 1) * H // K)
            queries = q[first:last, own] / np.float32(np.sqrt(d))
            parts = [Partial.nothing(queries.shape[0] * queries.shape[1], size)]
            for key in range(low, high, k.tile):
                end = min(key + k.tile, high)
                scores = np.einsum("qgd,kd->qgk", queries, k[key:end, head])
                if mask is not None:
                    seen = mask[first:last, key:end]
                else:
                    far = np.arange(S - T + first, S - T + last)[:, None] - np.arange(key, end)
                    seen = (far >= 0) & (far < (window or S + 1))
                scores = np.where(seen[:, None], scores, np.float32(-np.inf))
                tile = scores.reshape(-1, end - key)
                parts.append(online_softmax(Partial.nothing(len(tile), size), tile,
                                            v[key:end, head]))
            out[first:last, own] = merge(parts).result().reshape(last - first, -1, size)
