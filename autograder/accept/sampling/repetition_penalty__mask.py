"""A mask over the vocabulary."""

import numpy as np


def repetition_penalty(logits, penalty, ids):
    seen = np.zeros(len(logits), dtype=bool)
    for id in ids:
        seen[id] = True
    punished = np.where(logits < 0, logits * penalty, logits / penalty)
    return np.where(seen, punished, logits).astype(np.float32)
