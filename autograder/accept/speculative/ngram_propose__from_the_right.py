"""Two loops, from the right."""


def ngram_propose(ids, count, longest=3):
    for n in range(longest, 0, -1):
        for start in range(len(ids) - n - 1, -1, -1):
            if list(ids[start:start + n]) == list(ids[len(ids) - n:]):
                return list(ids[start + n:start + n + count])
    return []
