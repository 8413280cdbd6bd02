"""The latest place of every n-gram in a dict."""


def ngram_propose(ids, count, longest=3):
    ids = tuple(ids)
    for n in range(min(longest, max(len(ids) - 1, 0)), 0, -1):
        latest = {ids[start:start + n]: start + n for start in range(len(ids) - n)}
        after = latest.get(ids[-n:])
        if after is not None:
            return [*ids[after:after + count]]
    return []
