"""Gone symbols are None, and neighbours are found by links that are made shorter on the way."""

import heapq


def encode_long_piece(symbols, merges):
    items = list(symbols)
    size = len(items)
    following = [i + 1 for i in range(size)]
    previous = [i - 1 for i in range(size)]
    heap = [(merges[pair][0], i) for i in range(size - 1)
            if (pair := (items[i], items[i + 1])) in merges]
    heapq.heapify(heap)
    while heap:
        rank, i = heapq.heappop(heap)
        if items[i] is None or following[i] >= size:
            continue
        j = following[i]
        pair = (items[i], items[j])
        if pair not in merges or merges[pair][0] != rank:
            continue
        items[i], items[j] = merges[pair][1], None
        following[i] = following[j]
        if following[j] < size:
            previous[following[j]] = i
        for left in (previous[i], i):
            if left >= 0 and following[left] < size:
                new = (items[left], items[following[left]])
                if new in merges:
                    heapq.heappush(heap, (merges[new][0], left))
    return [item for item in items if item is not None]
