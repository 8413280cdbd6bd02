"""Possessive repetition, a look-ahead on what is allowed, and recursion over the splitters."""

import regex


def gpt2_pattern(letter, number):
    contraction = "'(?:s|t|m|d|re|ve|ll)"
    return (
        rf"{contraction}| ?{letter}++| ?{number}++| ?[^\s{letter}{number}]++|\s+(?=\s|\Z)|\s+")


def pre_tokenize(text, splitters):
    if not splitters:
        return [text]
    first, *others = splitters
    return sum((pre_tokenize(piece, others) for piece in regex.findall(first, text)), [])
