"""Longest match, equal to the WordPiece model of `tokenizers`. About 1 s."""

import random

import pytest
from tokenizers import Tokenizer, models

from gearworks.vocabularies.wordpiece import longest_match


@pytest.mark.parametrize("prefix", ["##", "", "@"])
def test_pieces_equal_hf(prefix):
    rng = random.Random(len(prefix))
    for _ in range(500):
        alphabet = rng.choice(["ab", "abc", "aé中"])
        pieces = {before + "".join(rng.choices(alphabet, k=rng.randrange(1, 4)))
                  for before in ("", prefix) for _ in range(8)}
        vocabulary = {piece: id for id, piece in enumerate(["<?>", *sorted(pieces)])}
        hf = Tokenizer(models.WordPiece(vocabulary, unk_token="<?>",
                                        max_input_chars_per_word=20,
                                        continuing_subword_prefix=prefix))
        word = "".join(rng.choices(alphabet, k=rng.randrange(25)))
        assert (longest_match(word, pieces, prefix=prefix, unknown="<?>", longest_word=20)
                == hf.encode(word).tokens)


def test_words_by_hand():
    pieces = {"un", "una", "##aff", "##able", "##ff"}
    assert longest_match("unaffable", pieces) == ["una", "##ff",
                                                  "##able"], "the longest first, not the fewest"
    assert longest_match("unx", pieces) == ["[UNK]"], "no part of the word is kept"
    assert longest_match("able",
                         pieces) == ["[UNK]"], "a piece with a prefix does not begin a word"
    assert longest_match("", pieces) == []
    assert longest_match("u" * 101, {"u", "##u"}) == ["[UNK]"]
    assert len(longest_match("u" * 100, {"u", "##u"})) == 100


def test_it_may_miss_a_word_that_could_be_cut():
    """The longest piece first is a guess that is never taken back."""
    assert longest_match("abcd", {"ab", "abc", "##cd"}) == ["[UNK]"]
