"""The best place by a minimum over (rank, place)."""


def encode_piece(symbols, merges):
    ids = list(symbols)
    while True:
        found = [(merges[ids[i], ids[i + 1]][0], i) for i in range(len(ids) - 1)
                 if (ids[i], ids[i + 1]) in merges]
        if not found:
            return ids
        _, i = min(found)
        ids[i:i + 2] = [merges[ids[i], ids[i + 1]][1]]
