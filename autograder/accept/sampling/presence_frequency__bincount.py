"""Counts of the whole vocabulary."""

import numpy as np


def presence_frequency(logits, presence, frequency, generated):
    counts = np.bincount(np.array(generated, dtype=int), minlength=len(logits)).astype(np.float32)
    return logits - np.float32(presence) * (counts > 0).astype(np.float32) - np.float32(frequency) * counts
