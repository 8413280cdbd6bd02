"""The first piece, then the rest as a word that does not begin."""


def _cut(rest, pieces, mark, prefix):
    if not rest:
        return []
    for end in reversed(range(1, len(rest) + 1)):
        if mark + rest[:end] in pieces:
            tail = _cut(rest[end:], pieces, prefix, prefix)
            return None if tail is None else [mark + rest[:end], *tail]
    return None


def longest_match(word, pieces, *, prefix="##", unknown="[UNK]", longest_word=100):
    found = None if len(word) > longest_word else _cut(word, pieces, "", prefix)
    return [unknown] if found is None else found
