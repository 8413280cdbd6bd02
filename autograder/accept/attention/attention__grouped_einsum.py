"""Groups as an axis of their own, in float64, the scores hidden by an added bias."""

import numpy as np


def attention(q, k, v, mask=None):
    T, H, d = q.shape
    S, K, e = v.shape
    grouped = q.astype(np.float64).reshape(T, K, H // K, d)
    scores = np.einsum("tkgd,skd->kgts", grouped, k) / d ** 0.5
    if mask is None:
        mask = np.arange(S) <= np.arange(S - T, S)[:, None]
    with np.errstate(divide="ignore"):
        scores += np.log(mask.astype(np.float64))
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    weights = powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)
    return np.einsum("kgts,ske->tkge", weights, v).reshape(T, H, e).astype(np.float32)
