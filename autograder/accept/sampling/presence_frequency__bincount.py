"""Counts of the whole vocabulary."""

import numpy as np


def presence_frequency(logits, presence, frequency, generated):
    texts = generated if logits.ndim == 2 else [generated]
    counts = np.array([np.bincount(np.array(ids, dtype=int), minlength=logits.shape[-1])
                       for ids in texts], np.float32)
    counts = counts.reshape(logits.shape)
    return (logits - np.float32(presence) * (counts > 0).astype(np.float32)
            - np.float32(frequency) * counts)
