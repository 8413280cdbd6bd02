"""Online softmax over the blocks, in float64, with einsum."""

import numpy as np

from gearworks.attention import PLAIN


def one_sequence(q, blocks, length, rules):
    count, H, d = q.shape
    K = blocks[0][0].shape[0]
    q = q.astype(np.float64).reshape(count, K, H // K, d)
    q = q * (d ** -0.5 if rules.scale is None else rules.scale)
    own = np.arange(length - count, length)
    peak = np.full((count, K, H // K), -np.inf)
    if rules.sinks is not None:
        peak[:] = rules.sinks.reshape(K, -1)
    total = np.where(np.isinf(peak), 0.0, 1.0)
    mixed, start = 0.0, 0
    for k, v in blocks:
        scores = np.einsum("tkgd,ksd->tkgs", q, k.astype(np.float64))
        if rules.softcap is not None:
            scores = rules.softcap * np.tanh(scores / rules.softcap)
        token = np.arange(start, start + k.shape[1])
        seen = token[None] <= own[:, None]
        if rules.window is not None:
            seen &= token[None] > own[:, None] - rules.window
        scores = np.where(seen[:, None, None], scores, -np.inf)
        higher = np.maximum(peak, scores.max(-1))
        safe = np.where(np.isinf(higher), 0.0, higher)
        weights, shrink = np.exp(scores - safe[..., None]), np.exp(peak - safe)
        total = total * shrink + weights.sum(-1)
        mixed = mixed * shrink[..., None] + np.einsum("tkgs,kse->tkge", weights, v)
        peak, start = higher, start + k.shape[1]
    return (mixed / total[..., None]).reshape(count, H, -1).astype(np.float32)


def paged_attention(q, keys, values, block_tables, context_lens, query_lens, rules=PLAIN):
    size, start = keys.shape[2], 0
    out = [np.empty((0, q.shape[1], values.shape[-1]), np.float32)]
    for table, length, count in zip(block_tables, context_lens, query_lens):
        if count:
            parts = [(block, min(size, length - at * size)) for at, block in enumerate(table)
                     if at * size < length]
            blocks = [(keys[:, block, :used], values[:, block, :used]) for block, used in parts]
            out.append(one_sequence(q[start:start + count], blocks, length, rules))
        start += count
    return np.concatenate(out)
