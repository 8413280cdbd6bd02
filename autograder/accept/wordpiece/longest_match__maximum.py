"""The longest of all pieces that the rest starts with."""


def longest_match(word, pieces, *, prefix="##", unknown="[UNK]", longest_word=100):
    if len(word) > longest_word:
        return [unknown]
    out, rest = [], word
    while rest:
        before = prefix if out else ""
        fits = [piece for piece in pieces
                if len(piece) > len(before) and (before + rest).startswith(piece)]
        if not fits:
            return [unknown]
        best = max(fits, key=len)
        out.append(best)
        rest = rest[len(best) - len(before):]
    return out
