"""One merge, then the rest of the work by a call of itself, on tuples."""


def encode_piece(symbols, merges):
    symbols = tuple(symbols)
    pairs = list(zip(symbols, symbols[1:]))
    ranks = [merges[pair][0] if pair in merges else float("inf") for pair in pairs]
    if not ranks or min(ranks) == float("inf"):
        return list(symbols)
    place = ranks.index(min(ranks))
    return encode_piece(symbols[:place] + (merges[pairs[place]][1],) + symbols[place + 2:],
                        merges)
