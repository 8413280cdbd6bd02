"""A Counter of zipped lists, and a stack whose top may merge with what comes."""

from collections import Counter


def count_pairs(words):
    counts = Counter()
    for symbols, times in words:
        counts.update({pair: times * n
                       for pair, n in Counter(zip(symbols, symbols[1:])).items()})
    return counts


def merge_pair(symbols, pair, merged):
    left, right = pair
    stack, open_ = [], False
    for symbol in symbols:
        if open_ and symbol == right:
            stack[-1] = merged
            open_ = False
        else:
            stack.append(symbol)
            open_ = symbol == left
    return stack
