"""Training of byte-level BPE, equal to the trainer of `tokenizers`,
ties included. About 6 s."""

import json
import random

import pytest
import regex
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from gearworks.errors import ModelError
from gearworks.tokenizer import (Tokenizer, bytes_to_unicode, count_pairs, encode_piece,
                                 gpt2_pattern, merge_pair, pre_tokenize, splitter, train_bpe)
from gearworks.vocabularies.patterns import GPT2_PATTERN, LLAMA3_PATTERN

SPLITTERS = {("gpt2",): pre_tokenizers.ByteLevel(add_prefix_space=False),
             ("digits", "gpt2"): pre_tokenizers.Sequence([pre_tokenizers.Digits(
                 individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
             ("llama3",): pre_tokenizers.Sequence([
                 pre_tokenizers.Split(tokenizers.Regex(LLAMA3_PATTERN), "isolated"),
                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])}
ALPHABETS = ["ab", "aab", "abc ", "ab cd", "abcdefgh   ", "é中ab ", "a1 2b", "👩\u200d e\u0301",
             "\n \tx'sSt"]
ENGLISH = ("It isn't the tokens that cost you, it's the tokenizer's borders: 1024 of them, "
           "2048 of them, and more. The inference engine infers; the inferencer inferred. "
           "推理引擎,推理。 for i in range(10):\n    print(i)\n" * 3)


def hf_model(texts: list[str], vocab_size: int, splitters: tuple[str, ...]) -> dict:
    """The "model" of the tokenizer.json that the library trains."""
    hf = tokenizers.Tokenizer(models.BPE())
    hf.pre_tokenizer = SPLITTERS[splitters]
    hf.train_from_iterator(texts,
                           trainers.BpeTrainer(
                               vocab_size=vocab_size, show_progress=False,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(hf.to_str())["model"]


def assert_trains_like_hf(texts: list[str], vocab_size: int,
                          splitters: tuple[str, ...]) -> None:
    ours = train_bpe(texts, vocab_size, splitters)
    theirs = hf_model(texts, vocab_size, splitters)
    written = [*ours.tokens]
    assert [[written[left], written[right]]
            for left, right in ours.merges] == theirs["merges"], texts
    assert ours.tokens == theirs["vocab"]
    assert [rank for rank, _ in ours.merges.values()] == [*range(len(ours.merges))]
    assert ours.splitters == splitters


@pytest.mark.parametrize("splitters", SPLITTERS)
def test_training_equals_hf(splitters):
    """Small alphabets, so that nearly every merge is a tie and most runs overlap themselves."""
    rng = random.Random(len(splitters))
    for _ in range(100):
        alphabet = rng.choice(ALPHABETS)
        texts = ["".join(rng.choices(alphabet, k=rng.randrange(60)))
                 for _ in range(rng.randrange(12))]
        assert_trains_like_hf(texts, rng.choice([256, 257, 260, 270, 300, 400]), splitters)


@pytest.mark.parametrize("splitters", SPLITTERS)
def test_training_on_prose_equals_hf(splitters):
    assert_trains_like_hf([ENGLISH], 500, splitters)
    assert_trains_like_hf(ENGLISH.splitlines(keepends=True), 400, splitters)


def test_ties_by_hand():
    """All pairs occur once, and "a" has id 64:
    so ab goes before ac, and both before dc, the first in the text."""
    ids = train_bpe([], 256).tokens
    assert (ids["!"], ids["a"], ids["Ġ"], max(ids.values())) == (0, 64, 220, 255)
    assert [*train_bpe(["dc", "ac", "ab"], 258).tokens][-2:] == ["ab", "ac"]
    assert [*train_bpe(["dc", "ac", "ab"], 259).tokens][-1:] == ["dc"]


def test_training_stops():
    assert len(train_bpe(["aaaa"], 1000).tokens) == 258, "when everything has merged"
    assert train_bpe([], 1000).merges == {}
    assert train_bpe(["", ""], 256).merges == {}
    with pytest.raises(ModelError, match="255"):
        train_bpe(["a"], 255)


def test_no_merge_crosses_a_piece():
    vocabulary = train_bpe(["ab ab ab ab " * 20], 300)
    characters = bytes_to_unicode()
    for token in vocabulary.tokens:
        assert characters[32] not in token[1:], token
    assert "abab" not in vocabulary.tokens


def test_trained_vocabularies_lose_nothing():
    tokenizer = Tokenizer(train_bpe([ENGLISH], 400))
    assert tokenizer.missing_bytes == b""
    rng = random.Random(1)
    for data in [bytes(range(256)), b"\xff\xfe", ENGLISH.encode("utf-8"),
                 *(rng.randbytes(40) for _ in range(100))]:
        assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


def test_encoding_repeats_the_training():
    """What training left of a piece is what encoding makes of it:
    the law that ties the two together."""
    vocabulary = train_bpe([ENGLISH], 420)
    tokenizer = Tokenizer(vocabulary)
    characters = bytes_to_unicode()
    for piece in pre_tokenize(ENGLISH, [splitter("gpt2")]):
        symbols = [vocabulary.tokens[characters[byte]] for byte in piece.encode("utf-8")]
        replayed = symbols
        for pair, (_, merged) in vocabulary.merges.items():
            replayed = merge_pair(replayed, pair, merged)
        assert encode_piece(symbols, vocabulary.merges) == replayed == tokenizer.encode(piece)


# --- pairs


words = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=8), st.integers(1, 9)),
                 max_size=6)


@given(words)
def test_pairs_are_counted_at_every_place(words):
    counts = count_pairs(words)
    for left in range(3):
        for right in range(3):
            expected = sum(occurrences for symbols, occurrences in words
                           for place in range(len(symbols) - 1)
                           if symbols[place:place + 2] == [left, right])
            assert counts.get((left, right), 0) == expected
    assert all(counts.values()), "a pair that does not occur has no entry"


@given(st.lists(st.integers(0, 2)), st.tuples(st.integers(0, 2), st.integers(0, 2)))
def test_merging_keeps_the_text(symbols, pair):
    before = [*symbols]
    merged = merge_pair(symbols, pair, 9)
    assert symbols == before
    assert ([part for symbol in merged for part in (pair if symbol == 9 else (symbol,))]
            == symbols)
    # what is left of the pair is nowhere in the result, and nothing but occurrences was
    # replaced
    assert pair not in [*zip(merged, merged[1:])]
    text = "".join(map(str, symbols))
    assert len(symbols) - len(merged) == text.count("".join(map(
        str, pair))), "str.count takes from the left, too"


def test_overlaps_by_hand():
    assert count_pairs([([1, 1, 1, 1], 1)]) == {(1, 1): 3}
    assert merge_pair([1, 1, 1], (1, 1), 9) == [9, 1]
    assert merge_pair([1, 1, 1, 1], (1, 1), 9) == [9, 9]
    assert merge_pair([2, 1, 2, 1, 1], (2, 1),
                      2) == [2, 2, 1], "the new symbol joins nothing, whatever its id"
    assert merge_pair([], (1, 2), 9) == []


# --- the pattern


TEXTS = st.text(st.sampled_from("aZé中1٣½ \n\t\r\u00a0'sStremvld.,!_\u0301👩\u200d\x1c"))


@given(TEXTS)
def test_pattern_equals_the_published_one(text):
    ours = regex.findall(gpt2_pattern(r"\p{L}", r"\p{N}"), text)
    assert ours == regex.findall(GPT2_PATTERN, text)
    assert "".join(ours) == text


@given(TEXTS)
def test_pattern_takes_any_classes(text):
    """With classes of one's own, in either version of the syntax."""
    ours = regex.findall(gpt2_pattern("[a-z]", "[½1]"), text, flags=regex.V1)
    by_hand = regex.findall(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[a-z]+| ?[½1]+| ?[^\sa-z½1]+|\s+(?!\S)|\s+", text)
    assert ours == by_hand


@given(TEXTS)
def test_pieces_join_to_the_text(text):
    for names in (["gpt2"], ["llama3"], ["qwen2"], ["digits"], ["digits", "gpt2"], []):
        assert "".join(pre_tokenize(text, [splitter(name) for name in names])) == text


def test_each_splitter_cuts_what_the_last_one_left():
    assert (pre_tokenize("ab12cd", ["[a-c]+|[^a-c]+", "[b-d]+|[^b-d]+"])
            == ["a", "b", "12", "c", "d"])
    assert pre_tokenize("", ["a|[^a]+"]) == []
    assert pre_tokenize("ab", []) == ["ab"]
