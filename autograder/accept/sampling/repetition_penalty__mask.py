"""A mask over the vocabulary."""

import numpy as np


def repetition_penalty(logits, penalty, ids):
    seen = np.zeros(logits.shape, dtype=bool)
    for row, text in zip(np.atleast_2d(seen), ids if logits.ndim == 2 else [ids]):
        for id in text:
            row[id] = True
    punished = np.where(logits < 0, logits * penalty, logits / penalty)
    return np.where(seen, punished, logits).astype(np.float32)
