"""The best cut, equal to `tokenizers`' Unigram and to trying all cuts. About 2 s."""

import random
from itertools import groupby, product

from tokenizers import Tokenizer, models

from gearworks.vocabularies.unigram import (UNKNOWN_PENALTY, best_pieces,
                                            best_pieces_of_long)


def random_scores(rng: random.Random, ties: bool) -> dict[str, float]:
    score = (lambda: float(-rng.randrange(1, 6))) if ties else (lambda: -5 * rng.random())
    return {"".join(rng.choices("abcé", k=rng.randrange(1, 5))): score()
            for _ in range(rng.randrange(1, 12))}


def test_pieces_equal_hf():
    rng = random.Random(1)
    for number in range(3000):
        scores = random_scores(rng, ties=number % 2 == 0)
        hf = Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0))
        text = "".join(rng.choices("abcéx" if number % 3 else "abcé", k=rng.randrange(14)))
        theirs = [text[start:end] for start, end in hf.encode(text).offsets]
        assert best_pieces(text, scores) == theirs, (text, scores)


def test_a_long_text_is_cut_in_the_same_places():
    """With ties, with unknown characters, with pieces of all lengths; only what is unknown
    stays apart there."""
    rng = random.Random(3)
    for number in range(2000):
        scores = random_scores(rng, ties=number % 2 == 0)
        scores |= {"".join(rng.choices("abcé", k=rng.randrange(5, 9))): -1.0 for _ in range(3)}
        lengths = {}
        for piece in sorted((piece for piece in scores if len(piece) > 2), key=len):
            lengths.setdefault(piece[:3], []).append(len(piece))
        text = "".join(rng.choices("abcéx" if number % 3 else "abcé", k=rng.randrange(40)))
        found = best_pieces_of_long(text, scores, lengths,
                                    min(scores.values()) - UNKNOWN_PENALTY)
        joined = [piece for unknown, run in groupby(found, lambda piece: piece not in scores)
                  for piece in (["".join(run)] if unknown else run)]
        assert joined == best_pieces(text, scores), (text, scores)


def test_no_other_cut_is_better():
    rng = random.Random(2)
    for _ in range(200):
        scores = random_scores(rng, ties=False) | {character: -8.0 for character in "abc"}
        text = "".join(rng.choices("abc", k=rng.randrange(1, 9)))
        cuts = [cut_at(text, borders)
                for borders in product([False, True], repeat=len(text) - 1)]
        best = max(sum(map(scores.get, cut)) for cut in cuts if scores.keys() >= {*cut})
        assert abs(sum(map(scores.get, best_pieces(text, scores))) - best) < 1e-9


def cut_at(text: str, borders: tuple[bool, ...]) -> list[str]:
    pieces = [text[:1]]
    for character, is_border in zip(text[1:], borders):
        if is_border:
            pieces.append(character)
        else:
            pieces[-1] += character
    return pieces


def test_cuts_by_hand():
    assert best_pieces("", {"a": -1.0}) == []
    assert best_pieces(
        "abc", {"ab": -1.0, "c": -1.0, "a": -3.0, "bc": -0.5}) == ["ab", "c"], "the sum decides"
    assert best_pieces("xxay",
                       {"a": -1.0}) == ["xx", "a", "y"], "unknown neighbours are one piece"
    assert best_pieces(
        "abc", {"abc": -3.0, "ab": -1.0, "bc": -1.0, "a": -2.0, "c": -2.0}) == ["abc"], "a tie"


def test_an_unknown_character_costs_more_than_any_piece():
    scores = {"a": -1.0, "xa": -1.0 - UNKNOWN_PENALTY - 0.5}
    assert best_pieces("xa", scores) == ["xa"]
    assert best_pieces("xa", {"a": 0.0, "xa": -3.0}) == ["xa"]
