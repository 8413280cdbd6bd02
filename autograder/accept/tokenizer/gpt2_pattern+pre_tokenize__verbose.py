"""The alternatives in a list, and finditer."""

import regex


def gpt2_pattern(letter, number):
    kinds = [letter, number, f"[^\\s{letter}{number}]"]
    contractions = ["'" + ending for ending in ("s", "t", "re", "ve", "m", "ll", "d")]
    return "|".join([*contractions, *(f"[ ]?(?:{kind})+" for kind in kinds), r"\s+(?!\S)",
                     r"\s+"])


def pre_tokenize(text, splitters):
    pieces = (text,)
    for splitter in splitters:
        compiled = regex.compile(splitter)
        pieces = tuple(match.group(0) for piece in pieces for match in compiled.finditer(piece))
    return list(pieces)
