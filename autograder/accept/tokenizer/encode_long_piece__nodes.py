"""A doubly linked list of small objects."""

import heapq
from itertools import count


class _Node:
    def __init__(self, symbol, place):
        self.symbol, self.place = symbol, place
        self.left = self.right = None
        self.alive = True


def encode_long_piece(symbols, merges):
    nodes = [_Node(symbol, place) for place, symbol in enumerate(symbols)]
    for a, b in zip(nodes, nodes[1:]):
        a.right, b.left = b, a
    ticket, heap = count(), []

    def push(a, b):
        if a is not None and b is not None:
            entry = merges.get((a.symbol, b.symbol))
            if entry:
                heapq.heappush(heap,
                               (entry[0], a.place, next(ticket), entry[1], a, b,
                                (a.symbol, b.symbol)))

    for a, b in zip(nodes, nodes[1:]):
        push(a, b)
    while heap:
        *_, merged, a, b, pair = heapq.heappop(heap)
        if not (a.alive and b.alive and a.right is b and (a.symbol, b.symbol) == pair):
            continue
        a.symbol, b.alive, a.right = merged, False, b.right
        if b.right is not None:
            b.right.left = a
        push(a.left, a)
        push(a, a.right)
    return [node.symbol for node in nodes if node.alive]
