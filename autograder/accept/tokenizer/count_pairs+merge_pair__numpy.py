"""Counts by NumPy; merging by a flag that says whether a symbol has been used up."""

from collections import Counter

import numpy as np


def count_pairs(words):
    total = Counter()
    for symbols, times in words:
        if len(symbols) < 2:
            continue
        pairs = np.stack([np.asarray(symbols[:-1]), np.asarray(symbols[1:])], axis=1)
        for pair, count in zip(*np.unique(pairs, axis=0, return_counts=True)):
            total[tuple(pair.tolist())] += int(count) * times
    return total


def merge_pair(symbols, pair, merged):
    array = np.asarray(symbols, dtype=np.int64)
    hits = (np.flatnonzero((array[:-1] == pair[0]) & (array[1:] == pair[1])) if len(array) > 1
            else np.array([], int))
    out, used = [], -1
    hits = set(hits.tolist())
    for place, symbol in enumerate(array.tolist()):
        if place <= used:
            continue
        if place in hits:
            out.append(merged)
            used = place + 1
        else:
            out.append(symbol)
    return out
