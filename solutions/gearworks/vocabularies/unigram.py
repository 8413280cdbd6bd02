"""The Unigram model: of all ways to cut a text into pieces, the most probable one.

Every piece has a score, the logarithm of its probability, and a cut's score is the sum over its
pieces. Left out on purpose: SentencePiece's treatment of spaces, which is in `sentencepiece`,
sampling among cuts, and the training of the scores.

Source: Kudo 2018; encoding as in SentencePiece and the `tokenizers` library.
"""

import math
from collections.abc import Mapping, Sequence

UNKNOWN_PENALTY = 10.0      # by how much an unknown character is worse than the worst piece
LONG_TEXT = 8               # characters from which `best_pieces_of_long` is much the faster


def best_pieces(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces of a text with the highest sum of scores; joined, they are the text again.

    scores: piece -> the logarithm of its probability. A character that is no piece by itself
    may still be cut off alone, as unknown, for `UNKNOWN_PENALTY` less than the lowest score
    there is; neighbours that are unknown are returned as one piece. Of cuts with equal scores
    the one whose last piece is longest is taken, and so on towards the beginning. `scores` is
    not empty. The cost grows with the text's length times that of the longest piece.

    >>> best_pieces("abab", {"a": -1.0, "b": -1.5, "ab": -2.0, "bab": -2.5})
    ['a', 'bab']
    """
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    longest = max(map(len, scores))

    # best[end]: the highest score of any cut of text[:end], and where the last piece of that
    # cut begins.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(text) + 1):
        candidates = [(best[start][0] + scores[text[start:end]], start)
                      for start in range(max(0, end - longest), end)
                      if text[start:end] in scores]
        if text[end - 1] not in scores:
            candidates.append((best[end - 1][0] + unknown, end - 1))
        best.append(max(candidates, key=lambda candidate: (candidate[0], -candidate[1])))

    pieces: list[str] = []
    end = len(text)
    while end:
        start = best[end][1]
        piece = text[start:end]
        if pieces and piece not in scores and pieces[0] not in scores:
            pieces[0] = piece + pieces[0]
        else:
            pieces.insert(0, piece)
        end = start
    return pieces


def best_pieces_of_long(text: str, scores: Mapping[str, float],
                        lengths: Mapping[str, Sequence[int]], unknown: float) -> list[str]:
    """The same for a long text and a large vocabulary: it tries only the lengths that pieces
    which begin like this have. Neighbours that are unknown stay apart.

    lengths: the first three characters of pieces -> how long these are, ascending. unknown:
    what a character counts that is no piece.

    >>> best_pieces_of_long("abab", {"a": -1.0, "b": -1.5, "ab": -2.0, "bab": -2.5},
    ...                     {"bab": [3]}, -12.5)
    ['a', 'bab']
    """
    best, starts = [0.0] + [-math.inf] * len(text), [0] * (len(text) + 1)
    for start in range(len(text)):
        so_far = best[start]
        for length in (1, 2, *lengths.get(text[start:start + 3], ())):
            end = start + length
            if end > len(text):
                break
            score = scores.get(text[start:end], unknown if length == 1 else -math.inf)
            # where two are equal the first one stays: its last piece is longer
            if so_far + score > best[end]:
                best[end], starts[end] = so_far + score, start
    pieces: list[str] = []
    end = len(text)
    while end:
        pieces.append(text[starts[end]:end])
        end = starts[end]
    return pieces[::-1]
