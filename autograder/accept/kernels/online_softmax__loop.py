"""Row by row and key by key, in Python's own numbers."""

import math

import numpy as np

from gearworks.kernels.flash import Partial


def online_softmax(before, scores, values):
    peaks, totals, mixtures = [], [], []
    for peak, total, mixed, row in zip(before.peak.tolist(), before.total.tolist(),
                                       before.mixed.astype(np.float64), scores.tolist()):
        mixed = mixed.copy()
        for score, value in zip(row, values):
            if score == -math.inf:
                continue
            if score > peak:
                shrink = math.exp(peak - score) if peak != -math.inf else 0.0
                total, mixed, peak = total * shrink, mixed * shrink, score
            weight = math.exp(score - peak)
            total += weight
            mixed += weight * value
        peaks.append(peak)
        totals.append(total)
        mixtures.append(mixed)
    return Partial(np.array(peaks, np.float32), np.array(totals, np.float32),
                   np.array(mixtures, np.float32).reshape(before.mixed.shape))
