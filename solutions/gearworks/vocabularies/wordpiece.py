"""WordPiece, as BERT has it: the longest piece of a list that fits, again and again.

A piece that does not begin a word is written with a prefix, "##". Left out on purpose: BERT's
normalizer and its rule for words (lower case, accents, punctuation, Chinese characters one by
one), and the training of the list.

Source: Schuster & Nakajima 2012; encoding as in BERT (Devlin et al. 2018).
"""

from collections.abc import Collection


def longest_match(word: str, pieces: Collection[str], *, prefix: str = "##",
                  unknown: str = "[UNK]", longest_word: int = 100) -> list[str]:
    """The pieces of one word: from its start the longest of the list, then again for the rest.

    pieces: the list. After the first, a piece is looked for with `prefix` before it, and
    returned so.
    A word of which any part fits nothing is `unknown` as a whole, and so is one of more than
    `longest_word` characters. An empty word has no pieces.

    >>> longest_match("unaffable", {"un", "##aff", "##a", "##able"})
    ['un', '##aff', '##able']
    >>> longest_match("unable", {"un", "##a", "##b"})
    ['[UNK]']
    """
    if len(word) > longest_word:
        return [unknown]
    found: list[str] = []
    start = 0
    while start < len(word):
        before = prefix if start else ""
        fitting = (end for end in range(len(word), start, -1)
                   if before + word[start:end] in pieces)
        end = next(fitting, None)
        if end is None:
            return [unknown]
        found.append(before + word[start:end])
        start = end
    return found
