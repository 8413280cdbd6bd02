"""Scores as (sum, minus start), and unknown neighbours joined by groupby."""

from itertools import groupby

from gearworks.vocabularies.unigram import UNKNOWN_PENALTY


def best_pieces(text, scores):
    floor = min(scores.values()) - UNKNOWN_PENALTY
    table = {0: (0.0, 0)}
    for end in range(1, len(text) + 1):
        options = []
        for start in range(end):
            piece = text[start:end]
            if piece in scores:
                options.append((table[start][0] + scores[piece], -start))
            elif end - start == 1:
                options.append((table[start][0] + floor, -start))
        table[end] = max(options)
    cut, end = [], len(text)
    while end > 0:
        start = -table[end][1]
        cut.append(text[start:end])
        end = start
    cut.reverse()
    joined = []
    for is_known, group in groupby(cut, key=lambda piece: piece in scores):
        joined += group if is_known else ["".join(group)]
    return joined
