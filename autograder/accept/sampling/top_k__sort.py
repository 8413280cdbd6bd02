"""A full sort, row by row."""

import numpy as np


def top_k(logits, k):
    if k >= logits.shape[-1]:
        return logits.copy()
    border = np.sort(logits, axis=-1)[..., -k:][..., :1]
    return np.where(logits >= border, logits, -np.inf).astype(np.float32)
