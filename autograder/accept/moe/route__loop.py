"""Token by token, with sorted pairs."""

import numpy as np

from gearworks.layers import softmax


def route(scores, k, normalize):
    experts, weights = np.zeros((len(scores), k), int), np.zeros((len(scores), k), np.float32)
    for token, row in enumerate(scores):
        shares = softmax(row)
        best = sorted(range(len(row)), key=lambda expert: (-row[expert], expert))[:k]
        total = sum(float(shares[expert]) for expert in best) if normalize else 1.0
        experts[token] = best
        weights[token] = [float(shares[expert]) / total for expert in best]
    return experts, weights
