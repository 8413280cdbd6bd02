"""The pattern as it was published, and a loop that appends."""

import regex


def gpt2_pattern(letter, number):
    return ("'s|'t|'re|'ve|'m|'ll|'d| ?" + letter + "+| ?" + number + r"+| ?[^\s" + letter
            + number + r"]+|\s+(?!\S)|\s+")


def pre_tokenize(text, splitters):
    pieces = [text]
    for splitter in splitters:
        after = []
        for piece in pieces:
            after.extend(regex.findall(splitter, piece))
        pieces = after
    return pieces
