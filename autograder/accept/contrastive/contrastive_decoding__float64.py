"""From probabilities, in float64."""

import numpy as np


def contrastive_decoding(expert, amateur, alpha=0.1):
    def logarithms(logits):
        x = logits.astype(np.float64) - logits.max()
        return x - np.log(np.exp(x).sum())

    p, q = logarithms(expert), logarithms(amateur)
    seriously = np.exp(p - p.max()) >= alpha
    return np.where(seriously, p - q, -np.inf).astype(np.float32)
