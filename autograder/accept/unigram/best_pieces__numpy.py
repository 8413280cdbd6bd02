"""With NumPy arrays for sums and starts."""

import numpy as np

from gearworks.vocabularies.unigram import UNKNOWN_PENALTY


def best_pieces(text, scores):
    size, reach = len(text), max(len(piece) for piece in scores)
    sums, starts = np.full(size + 1, -np.inf), np.zeros(size + 1, np.int64)
    sums[0] = 0.0
    penalty = min(scores.values()) - UNKNOWN_PENALTY
    for end in range(1, size + 1):
        first = max(0, end - reach)
        values = np.array([scores.get(text[start:end], -np.inf) for start in range(first, end)])
        if text[end - 1] not in scores:
            values[-1] = penalty
        totals = sums[first:end] + values
        starts[end] = first + int(np.argmax(totals))
        sums[end] = totals.max()
    pieces, end = [], size
    while end:
        pieces.append(text[starts[end]:end])
        end = int(starts[end])
    result = []
    for piece in pieces[::-1]:
        if result and piece not in scores and result[-1] not in scores:
            result[-1] += piece
        else:
            result.append(piece)
    return result
