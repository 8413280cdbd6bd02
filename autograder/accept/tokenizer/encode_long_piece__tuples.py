"""Tuples on the heap with both symbols in them, and dictionaries for the links."""

import heapq


def encode_long_piece(symbols, merges):
    alive = dict(enumerate(symbols))
    after = {i: i + 1 for i in range(len(symbols) - 1)}
    before = {i + 1: i for i in range(len(symbols) - 1)}
    heap = []

    def offer(i):
        j = after.get(i)
        if j is not None:
            entry = merges.get((alive[i], alive[j]))
            if entry is not None:
                heapq.heappush(heap, (entry[0], i, alive[i], alive[j], entry[1]))

    for i in range(len(symbols) - 1):
        offer(i)
    while heap:
        _, i, left, right, merged = heapq.heappop(heap)
        j = after.get(i)
        if j is None or alive.get(i) != left or alive.get(j) != right:
            continue
        alive[i] = merged
        del alive[j]
        k = after.pop(j, None)
        before.pop(j)
        if k is None:
            del after[i]
        else:
            after[i], before[k] = k, i
        if i in before:
            offer(before[i])
        offer(i)
    return [alive[i] for i in sorted(alive)]
