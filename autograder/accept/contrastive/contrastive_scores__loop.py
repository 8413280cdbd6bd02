"""Candidate by candidate, vector by vector."""

import math

import numpy as np


def contrastive_scores(probabilities, candidates, past, alpha):
    scores = []
    for probability, candidate in zip(probabilities, candidates):
        likeness = -math.inf
        for earlier in past:
            product = float(np.dot(candidate.astype(np.float64), earlier.astype(np.float64)))
            length = float(np.linalg.norm(candidate.astype(np.float64))
                           * np.linalg.norm(earlier.astype(np.float64)))
            likeness = max(likeness, product / length)
        scores.append((1 - alpha) * float(probability) - alpha * likeness)
    return np.array(scores, dtype=np.float32)
