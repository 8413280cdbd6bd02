"""Ranks in a NumPy array, of which argmin gives the leftmost lowest."""

import numpy as np


def encode_piece(symbols, merges):
    symbols = [int(symbol) for symbol in symbols]
    while len(symbols) >= 2:
        entries = [merges.get((a, b)) for a, b in zip(symbols, symbols[1:])]
        ranks = np.array([np.inf if entry is None else entry[0] for entry in entries])
        place = int(np.argmin(ranks))
        if np.isinf(ranks[place]):
            break
        symbols = [*symbols[:place], entries[place][1], *symbols[place + 2:]]
    return symbols
