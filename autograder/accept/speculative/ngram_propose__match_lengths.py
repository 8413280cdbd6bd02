"""How far the text before each place agrees with its end;
the best place wins, the later one of two."""


def ngram_propose(ids, count, longest=3):
    best = (0, 0)
    for place in range(1, len(ids)):
        length = 0
        while length < min(longest, place) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        best = max(best, (length, place))
    length, place = best
    return list(ids[place:place + count]) if length else []
