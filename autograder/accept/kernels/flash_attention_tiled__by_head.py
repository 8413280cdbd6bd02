"""Rows go by head, then token, and the softmax is written out, in float64."""

import numpy as np


def flash_attention_tiled(q, k, v, out, window=None):
    T, H, d = q.shape
    S, K, size = v.shape
    shared, past = H // K, S - T
    for first in range(0, T, q.tile):
        rows = range(first, min(first + q.tile, T))
        lowest = max(0, past + rows[0] + 1 - window) if window else 0
        for head in range(K):
            heads = slice(shared * head, shared * (head + 1))
            tile = q[rows.start:rows.stop, heads].transpose(1, 0, 2).astype(np.float64)
            peak = np.full(tile.shape[:2], -np.inf)
            total, mixed = np.zeros(tile.shape[:2]), np.zeros((*tile.shape[:2], size))
            key = lowest
            while key <= past + rows[-1]:
                end = min(key + k.tile, past + rows[-1] + 1)
                keys, values = k[key:end, head], v[key:end, head]
                scores = tile @ keys.T.astype(np.float64) / d ** 0.5
                for i, row in enumerate(rows):
                    for j in range(key, end):
                        if j > past + row or (window and j <= past + row - window):
                            scores[:, i, j - key] = -np.inf
                new = np.maximum(peak, scores.max(-1))
                base = np.where(new == -np.inf, 0.0, new)
                shrink, weights = np.exp(peak - base), np.exp(scores - base[..., None])
                total = total * shrink + weights.sum(-1)
                mixed = mixed * shrink[..., None] + weights @ values
                peak, key = new, end
            mixed /= np.where(total > 0, total, 1)[..., None]
            out[rows.start:rows.stop, heads] = mixed.transpose(1, 0, 2).astype(np.float32)
