"""Checks of the tokenizer, against `tokenizers`, the reference, and laws of a lossless code."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import regex
from hypothesis import strategies as st

from autograder.checking import check, expect, expect_equal, expect_error, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, expect_agreement, expect_on_all
from autograder.generators import texts as kinds
from autograder.generators.calls import Call, calls, typed
from autograder.generators.ids import words
from autograder.generators.texts import streams, texts
from gearworks import tokenizer as reference
from gearworks.errors import ModelError
from gearworks.tokenizer import Tokenizer
from gearworks.vocabularies.vocabulary import AddedToken, Vocabulary

LETTER, NUMBER = r"\p{L}", r"\p{N}"
ENGLISH = ("It isn't the token that costs you, it's the tokenizer: 1024 of them, 2048 of them. "
           "The engine infers, the inferencer inferred, and a token took the tokens that it "
           "took. 推理引擎的推理 naïve café 👩‍👩‍👧 for i in range(10):")
CHARACTERS = "aZßé中ü1٣½Ⅷ \n\t\r\u00a0\u3000'stmrevld.,!?_-\u0301\U0001f44d"


def characters(rng, alphabet: str, length: int) -> str:
    """A random text of an alphabet."""
    return "".join(alphabet[i] for i in rng.integers(0, len(alphabet), length))


def python_random(rng) -> random.Random:
    return random.Random(int(rng.integers(2**32)))


# --- bytes_to_unicode


def byte_map(bytes_to_unicode) -> dict:
    got = bytes_to_unicode()
    expect(isinstance(got, dict), "a dict from byte to character", f"a {type(got).__name__}",
           "The keys are the numbers 0 to 255.")
    return got


example_of_bytes_to_unicode = docstring_example("tokenizer.bytes_to_unicode", points=1)


@check("tokenizer.bytes_to_unicode", points=2, public=True)
def one_character_each(bytes_to_unicode, rng):
    """Every byte has a character of its own, and all of them can be printed."""
    got = byte_map(bytes_to_unicode)
    expect_equal(sorted(got), list(range(256)), of="the bytes in the map",
                 hint="The keys are ints, not bytes objects.")
    long = [byte for byte in range(256)
            if not isinstance(got[byte], str) or len(got[byte]) != 1]
    expect(not long, "one character, a str of length 1, for each byte",
           f"byte {long[:1]}: {got[(long or [0])[0]]!r}")
    twice = [character for character, times in Counter(got.values()).items() if times > 1]
    expect(not twice, "256 different characters", f"{twice[:1]} for more than one byte",
           "Text must come back from the characters, so no two bytes may share one.")
    odd = [byte for byte in range(256) if not got[byte].isprintable() or got[byte].isspace()]
    expect(not odd, "every character to be printable, and no white space",
           f"{got[(odd or [0])[0]]!r} for byte {odd[:1]}",
           "The space, the controls, and what Latin-1 has between 0x7F and 0xA0 need "
           "stand-ins.")


@check("tokenizer.bytes_to_unicode", points=2, public=True)
def printable_bytes(bytes_to_unicode, rng):
    """Printable bytes stand for themselves."""
    got = byte_map(bytes_to_unicode)
    for byte in [*b"!09AZaz~", 0xA1, 0xAC, 0xAE, 0xE9, 0xFF, int(rng.integers(0x21, 0x7F)),
                 int(rng.integers(0xAE, 0x100))]:
        expect_equal(got.get(byte), chr(byte), of=f"the character of byte 0x{byte:02X}",
                     hint="Three ranges, the ends of each included: they are in the docstring.")


@check("tokenizer.bytes_to_unicode", points=1, public=True)
def the_space(bytes_to_unicode, rng):
    """The space is Ġ and the line feed is Ċ, as you have seen them in vocabularies."""
    got = byte_map(bytes_to_unicode)
    expect_equal((got.get(0x20), got.get(0x0A)), ("Ġ", "Ċ"),
                 of="the characters of space and line feed",
                 hint="The stand-ins count from U+0100 on, one for each byte that needs one, "
                      "in their order.")


@check("tokenizer.bytes_to_unicode", points=1, public=True)
def stand_ins(bytes_to_unicode, rng):
    """The bytes that need a stand-in get them in their order, without a gap."""
    got, right = byte_map(bytes_to_unicode), reference.bytes_to_unicode()
    for byte in sorted(right):
        expect_equal(got.get(byte), right[byte], of=f"the character of byte 0x{byte:02X}",
                     hint="Which bytes below this one need a stand-in, too? They have the "
                          "characters before its own.")


@check("tokenizer.bytes_to_unicode", points=1, public=False)
def gpt2_alphabet(bytes_to_unicode, rng):
    """The whole map, byte by byte."""
    expect_equal(byte_map(bytes_to_unicode), reference.bytes_to_unicode(), of="the map")


# --- gpt2_pattern, pre_tokenize

CUT = "tokenizer.gpt2_pattern+pre_tokenize"


def expect_cut(gpt2_pattern, text: str, hint: str, letter: str = LETTER,
               number: str = NUMBER) -> None:
    pattern = gpt2_pattern(letter, number)
    expect(isinstance(pattern, str), "a pattern as a str", f"a {type(pattern).__name__}")
    try:
        got = regex.findall(f"(?V1){pattern}", text)
    except regex.error as error:
        expect(False, "a pattern that `regex` can compile", f"the error {error}",
               "An unclosed bracket?")
    wanted = regex.findall("(?V1)" + reference.gpt2_pattern(letter, number), text)
    expect(all(isinstance(piece, str) for piece in got), "the matches to be pieces of the text",
           f"{got[0] if got else got!r}: `findall` gives groups instead of matches when a "
           "pattern captures any", "Write (?:…) where you group.")
    expect_equal(got, wanted, of=f"the pieces of {text!r}", hint=hint)


example_of_gpt2_pattern_pre_tokenize = docstring_example(CUT, points=1)


@check(CUT, points=2, public=True)
def words_keep_their_space(gpt2_pattern, pre_tokenize, rng):
    """A word, a number or a run of signs takes one space before it along."""
    word = characters(rng, "aeiostr", 4)
    expect_cut(gpt2_pattern, f"one {word} 12 {word}34, then... (that)",
               "Rules 2, 3 and 4: an optional space, then one or more of a kind. A piece never "
               "mixes kinds.")


@check(CUT, points=2, public=True)
def contractions(gpt2_pattern, pre_tokenize, rng):
    """The seven contractions are pieces of their own, in lower case only."""
    expect_cut(gpt2_pattern, "I'm you're he's don't we've she'll I'd rock'n IT'S 'tis 'lovely",
               "Rule 1 comes first, and it looks at no more than the letters it names: 'tis is "
               "'t and is.")


@check(CUT, points=1, public=True)
def all_scripts(gpt2_pattern, pre_tokenize, rng):
    """Letters and numbers are what the given classes say, in every script."""
    expect_cut(gpt2_pattern, "naïve café 中文分词 русский 123 ٣٤ Ⅷ½",
               "Use `letter` and `number` as they are given.")


@check(CUT, points=2, public=True)
def white_space(gpt2_pattern, pre_tokenize, rng):
    """Of white space before a word, all but the last character is a piece;
    a last space goes with the word."""
    expect_cut(gpt2_pattern, "if x:\n    return  x\n\n\ty  \n",
               "Rule 5 needs a look at what follows, without taking it: `(?!…)`. Rule 6 takes "
               "what is left at the end of the text.")


@check(CUT, points=2, public=True)
def one_after_the_other(gpt2_pattern, pre_tokenize, rng):
    """Each splitter cuts the pieces that the one before it left."""
    text = "in 2024 and " + str(int(rng.integers(100, 999)))
    for names in (["digits", "gpt2"], ["gpt2"], ["gpt2", "digits"]):
        rules = [reference.splitter(name) for name in names]
        with expect_unchanged(rules):
            got = pre_tokenize(text, rules)
        expect_equal(got, reference.pre_tokenize(text, rules),
                     of=f"the pieces of {text!r} under {names}",
                     hint="The first one sees the text, the second one sees pieces.")
    word = characters(rng, "bcdef", 3) + "abcdaef"
    both = ["[aeiou]+|[^aeiou]+", r"[\s\S]{1,2}"]
    for rules in (both, both[::-1]):
        expect_equal(pre_tokenize(word, rules), reference.pre_tokenize(word, rules),
                     of=f"the pieces of {word!r} under {rules}",
                     hint="The order of the splitters counts.")
    expect_equal(pre_tokenize("", [reference.splitter("gpt2")]), [],
                 of="the pieces of an empty text")
    expect_equal(pre_tokenize(text, []), [text], of="the pieces without any splitter")


@dataclass(frozen=True)
class Rule:
    """The pattern of a splitter, which is long, by its name; or a pattern."""

    name: str

    def made(self) -> str:
        return reference.splitter(self.name) if self.name in NAMED else self.name

    def typed(self) -> str:
        return f"splitter({self.name!r})" if self.name in NAMED else repr(self.name)


NAMED = ("gpt2", "digits", "llama3", "qwen2")
RULES = st.sampled_from([*NAMED, "[aeiou]+|[^aeiou]+", r"[\s\S]{1,2}", " |[^ ]+"]).map(Rule)
CLASSES = st.sampled_from([(LETTER, NUMBER)] * 4 + [("[a-cs]", "[x2]")])


@dataclass(frozen=True)
class Found:
    """A text that is cut by the pattern for these classes."""

    text: str
    letter: str
    number: str

    def typed(self) -> str:
        return (f"regex.findall(gpt2_pattern({self.letter!r}, {self.number!r}), "
                f"{typed(self.text)})")


def pieces_of(gpt2_pattern, case: Found) -> Seen:
    pattern = gpt2_pattern(case.letter, case.number)
    expect(isinstance(pattern, str), "a pattern as a str", f"a {type(pattern).__name__}")
    return [("", regex.findall(f"(?V1){pattern}", case.text))]


@check(CUT, points=2, public=True)
def any_text(gpt2_pattern, pre_tokenize, rng):
    """Texts of all scripts, with marks, white space and signs of every kind, in any classes,
    under any splitters."""
    expect_agreement(gpt2_pattern, reference.gpt2_pattern,
                     st.builds(lambda text, classes: Found(text, *classes), texts(), CLASSES),
                     rng, run=pieces_of, examples=300,
                     hint="By which of the six rules does the first piece that differs begin?")
    expect_agreement(pre_tokenize, reference.pre_tokenize,
                     calls(texts(long=False), st.lists(RULES, max_size=3)), rng,
                     hint="Cut by hand: the text by the first splitter, each piece by the "
                          "next.")


@check(CUT, points=1, public=False)
def like_hugging_face(gpt2_pattern, pre_tokenize, rng):
    """Random texts are cut as by Hugging Face's tokenizers, and nothing is lost."""
    from tokenizers import pre_tokenizers

    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pattern = gpt2_pattern(LETTER, NUMBER)
    for _ in range(60):
        text = characters(rng, CHARACTERS, int(rng.integers(1, 30)))
        wanted = [text[start:end] for _, (start, end) in theirs.pre_tokenize_str(text)]
        expect_equal(pre_tokenize(text, [f"(?V1){pattern}"]), wanted, of="the pieces")


@check(CUT, points=1, public=False)
def other_classes(gpt2_pattern, pre_tokenize, rng):
    """Classes of another kind, and patterns that are not GPT-2's."""
    rules = ["[a1]+|[^a1]+", "[12]+|[^12]+", " |[^ ]+"]
    for _ in range(10):
        expect_cut(gpt2_pattern, characters(rng, "abcxyz 12\n'st.", 25), "", "[a-cs]", "[x2]")
        text = characters(rng, "ab12 ", 20)
        expect_equal(pre_tokenize(text, [*rules]), reference.pre_tokenize(text, rules),
                     of="the pieces")


# --- count_pairs, merge_pair

PAIRS = "tokenizer.count_pairs+merge_pair"


def expect_counts(count_pairs, words: list, hint: str) -> None:
    with expect_unchanged(words):
        got = count_pairs(words)
    expect(hasattr(got, "keys"), "a Counter or a dict from pair to count",
           f"a {type(got).__name__}")
    got = {tuple(pair): int(count) for pair, count in dict(got).items()}
    wanted = dict(reference.count_pairs(words))
    for pair in [*wanted, *(pair for pair in got if pair not in wanted)]:
        expect(got.get(pair, 0) == wanted.get(pair, 0),
               f"the pair {pair} to be counted {wanted.get(pair, 0)} times in {words}",
               f"{got.get(pair, 0)} times", hint)
    expect(len(got) == len(wanted), "no entry for a pair that does not occur",
           f"{next((pair for pair in got if pair not in wanted), None)} with the count 0", hint)


example_of_count_pairs_merge_pair = docstring_example(PAIRS, points=1)


@check(PAIRS, points=2, public=True)
def words_count_as_often_as_they_occur(count_pairs, merge_pair, rng):
    """A pair counts at each of its places, as often as the word occurs,
    and never across two words."""
    once, often = int(rng.integers(2, 9)), int(rng.integers(20, 90))
    expect_counts(count_pairs, [([5, 6, 7, 5, 6], once), ([6, 5, 6], often), ([7], 3), ([], 2)],
                  "Go through the words one by one; each comes with the number of times it "
                  "occurs.")


@check(PAIRS, points=2, public=True)
def overlaps_count(count_pairs, merge_pair, rng):
    """Three equal symbols hold their pair twice."""
    expect_counts(count_pairs, [([4] * 3, 1), ([4] * int(rng.integers(4, 8)), 10)],
                  "Counting looks at every pair of neighbours. That only one of two "
                  "overlapping pairs can merge is the business of merging.")


@check(PAIRS, points=2, public=True)
def merged_from_the_left(count_pairs, merge_pair, rng):
    """Occurrences are replaced from the left, and none overlaps another."""
    for symbols, pair in (([3, 1, 2, 1, 2, 3], (1, 2)), ([1, 1, 1], (1, 1)),
                          ([2, 1, 1, 1, 1, 2], (1, 1)), ([1, 2, 1], (2, 1)), ([1, 2], (1, 2)),
                          ([2, 1, 1], (1, 2)), ([1], (1, 2)), ([], (1, 2))):
        expect_equal(merge_pair(symbols, pair, 9), reference.merge_pair(symbols, pair, 9),
                     of=f"{symbols} after merging {pair} into 9",
                     hint="Go from place to place: which two symbols do you compare there, and "
                          "where do you go on after a merge, and after none? Is the last "
                          "symbol still there?")
    expect_equal(merge_pair([2, 1, 2, 1, 1], (2, 1), 2), [2, 2, 1],
                 of="[2, 1, 2, 1, 1] after merging (2, 1) into 2",
                 hint="The new symbol joins nothing, whatever its id.")


@check(PAIRS, points=1, public=True)
def a_new_list(count_pairs, merge_pair, rng):
    """The symbols that were passed stay as they were, also when nothing merges."""
    for symbols in ([1, 2, 3, 1, 2], [3, 3]):
        with expect_unchanged(symbols):
            got = merge_pair(symbols, (1, 2), 9)
        expect(got is not symbols, "a new list", "the very list that was passed",
               "Build the result beside the argument.")


@check(PAIRS, points=2, public=True)
def ids_of_several_digits(count_pairs, merge_pair, rng):
    """Ids of one digit and of several, in runs and repetitions: 1, 11 and 111 are three."""
    expect_agreement(count_pairs, reference.count_pairs,
                     calls(st.lists(st.tuples(words(), st.integers(1, 12)), max_size=3)), rng,
                     hint="Each pair of neighbours counts as often as the word occurs.")
    merges = words().flatmap(lambda symbols: calls(
        st.just(symbols), st.tuples(*[st.sampled_from(symbols or [1])] * 2),
        st.sampled_from([256, 1, 11, *symbols])))
    expect_agreement(merge_pair, reference.merge_pair, merges, rng, examples=100,
                     hint="Ids are numbers. Go through them from the left.")


@check(PAIRS, points=1, public=False)
def any_words(count_pairs, merge_pair, rng):
    """Random words of few symbols."""
    for _ in range(20):
        words = [(rng.integers(0, 3, int(rng.integers(0, 9))).tolist(), int(rng.integers(1, 9)))
                 for _ in range(5)]
        expect_counts(count_pairs, words, "")


@check(PAIRS, points=1, public=False)
def any_merge(count_pairs, merge_pair, rng):
    """Random merges; the new symbol may be one that is there already."""
    for _ in range(40):
        symbols = rng.integers(0, 3, int(rng.integers(0, 12))).tolist()
        pair, merged = tuple(rng.integers(0, 3, 2).tolist()), int(rng.integers(0, 4))
        right = reference.merge_pair(symbols, pair, merged)
        expect_equal(merge_pair(symbols, pair, merged), right, of="the result")


# --- train_bpe


def expect_vocabulary(got, wanted: Vocabulary, of: str, hint: str) -> None:
    expect(isinstance(got, Vocabulary), "a Vocabulary", f"a {type(got).__name__}",
           "The signature names what is returned.")
    byte_of = {character: byte for byte, character in reference.bytes_to_unicode().items()}
    names = {id: token for token, id in wanted.tokens.items()}

    def text_of(id: int) -> str:
        if id not in names:
            return f"id {id}"
        return repr(bytes(map(byte_of.get, names[id])).decode("utf-8", "backslashreplace"))

    def shown(pair: tuple) -> str:
        return " + ".join(map(text_of, pair))

    alphabet = {token: id for token, id in wanted.tokens.items() if id < 256}
    expect_equal({token: got.tokens.get(token) for token in alphabet}, alphabet,
                 of="the ids of the 256 bytes",
                 hint="Sort the characters, not the bytes: the first is '!'.")
    ours = [tuple(pair) for pair in got.merges]
    for number, (mine, right) in enumerate(zip(ours, wanted.merges)):
        expect(mine == right, f"merge {number} of {of} to be {shown(right)}, ids {right}",
               f"{shown(mine)}, ids {mine}", hint)
    expect(len(ours) == len(wanted.merges), f"{len(wanted.merges)} merges of {of}",
           f"{len(ours)}",
           "Training ends at `vocab_size` tokens, bytes included, or when no pair is left.")
    expect_equal({pair: tuple(entry) for pair, entry in got.merges.items()},
                 dict(wanted.merges),
                 of="the merges, each with its rank and the id of its result",
                 hint="Ranks count from 0, ids from 256.")
    expect_equal(dict(got.tokens), dict(wanted.tokens), of="the tokens",
                 hint="The text of a merge is left and right, joined.")
    expect_equal(tuple(got.splitters), tuple(wanted.splitters),
                 of="the splitters that the vocabulary remembers")


def expect_trained(train_bpe, texts: list[str], vocab_size: int, hint: str,
                   splitters: tuple = ("gpt2",)) -> None:
    wanted = reference.train_bpe(texts, vocab_size, splitters)
    shown = repr(texts) if len(repr(texts)) < 120 else f"{len(texts)} texts"
    expect_vocabulary(train_bpe(texts, vocab_size, splitters), wanted,
                      f"{shown} cut by {', '.join(splitters)}", hint)


example_of_train_bpe = docstring_example("tokenizer.train_bpe", points=1)


@check("tokenizer.train_bpe", points=2, public=True)
def bytes_first(train_bpe, rng):
    """A vocabulary of 256 tokens is the bytes, in the order of their characters."""
    expect_trained(train_bpe, ["never mind"], 256, "")


@check("tokenizer.train_bpe", points=3, public=True)
def the_most_frequent_pair(train_bpe, rng):
    """The pair that occurs most often is merged, and all is counted again."""
    often = (" hugs" * int(rng.integers(12, 20)) + " pugs" * int(rng.integers(6, 9))
             + " bun" * int(rng.integers(2, 4)))
    expect_trained(train_bpe, [often], 262,
                   "Which pairs are there after the last merge? Count the words as they are "
                   "now.")


@check("tokenizer.train_bpe", points=3, public=True)
def ties(train_bpe, rng):
    """Of pairs that occur equally often, the one with the lowest ids is merged."""
    expect_trained(train_bpe, ["dc", "ac", "ab", "ba"], 260,
                   "Compare left ids first, then right ids; where a pair stands in the text "
                   "does not matter.")
    expect_trained(train_bpe, ["zb", "za", "é", "~a"], 260,
                   "Ids, not characters or strings: what was merged later has the higher id.")
    expect_trained(train_bpe, ["abx aby", "cdx cdy"], 264,
                   "A merged symbol has a higher id than any byte.")


@check("tokenizer.train_bpe", points=2, public=True)
def inside_pieces(train_bpe, rng):
    """No merge crosses the border of a piece, and the splitters decide where that is."""
    texts = ["ab ab", "ab12ab12 ab12", "12 12", "a", "b"]
    for splitters in (("gpt2",), ("digits", "gpt2")):
        expect_trained(train_bpe, texts, 266,
                       "Each text is cut by itself, and pairs are counted within pieces.",
                       splitters)


@check("tokenizer.train_bpe", points=1, public=True)
def too_small(train_bpe, rng):
    """A vocabulary that cannot hold the bytes is refused."""
    with expect_error(ModelError, when="asked for 255 tokens",
                      hint="The docstring names the error."):
        train_bpe(["a text"], 255)


def learned(train_bpe, case: Call) -> Seen:
    """What training gives, without the 256 tokens that are there in any case."""
    args, kwargs = case.made()
    with expect_unchanged(*args):
        vocabulary = train_bpe(*args, **kwargs)
    merges = [(tuple(pair), tuple(entry)) for pair, entry in vocabulary.merges.items()]
    return [("the merges of", merges),
            ("the tokens after the first 256 of", {token: id for token, id
                                                   in vocabulary.tokens.items() if id >= 256}),
            ("the splitters of", [*vocabulary.splitters]),
            ("all tokens of", dict(vocabulary.tokens))]


TRAINED_ON = st.lists(st.one_of(
    texts(["a", "b", "ab", "aa"], ["ba"], [" "], most=8, long=False),
    texts(["a", " ", "\n", "\r\n", "\t", "\n\n"], most=6, long=False),
    texts(kinds.WHITE_SPACE, ["a"], most=5, long=False),
    texts(kinds.WORDS, kinds.SIGNS, kinds.WHITE_SPACE, kinds.DIGITS, most=4, long=False)),
    max_size=3)


@check("tokenizer.train_bpe", points=2, public=True)
def any_texts(train_bpe, rng):
    """Texts of letters, white space and signs of every kind, to any size of the vocabulary."""
    sizes = st.one_of(st.integers(256, 275), st.integers(256, 275), st.integers(250, 256))
    splitters = st.sampled_from([("gpt2",), ("digits", "gpt2"), ("llama3",), ()])
    trained = st.builds(lambda texts, size, splitters: Call(
        (texts, size), {} if splitters == ("gpt2",) else {"splitters": splitters}),
        TRAINED_ON, sizes, splitters)
    expect_agreement(train_bpe, reference.train_bpe, trained, rng, run=learned, examples=200,
                     hint="Cut these texts into pieces by `pre_tokenize`, count the pairs, and "
                          "make the first merges by hand.")


@check("tokenizer.train_bpe", points=1, public=False)
def nothing_left(train_bpe, rng):
    """Training on little text ends early."""
    for corpus in ([], [""], ["a"], ["aaaa"], ["ab", "ab"]):
        expect_trained(train_bpe, corpus, 300, "")


@check("tokenizer.train_bpe", points=1, public=False)
def as_hugging_face_trains(train_bpe, rng):
    """Small random corpora, full of ties, as by Hugging Face's trainer."""
    for alphabet in ("ab", "aab ", "abc d", "é中a ", "a1 2b", "abcdefgh   "):
        texts = [characters(rng, alphabet, int(rng.integers(1, 50))) for _ in range(6)]
        vocab_size = int(rng.integers(257, 300))
        theirs, got = hf_model(texts, vocab_size), train_bpe(texts, vocab_size, ("gpt2",))
        ids = theirs["vocab"]
        merges = {(ids[left], ids[right]): (rank, ids[left + right])
                  for rank, (left, right) in enumerate(theirs["merges"])}
        expect_vocabulary(got, Vocabulary(ids, merges), "random texts", "")


def hf_model(texts: list[str], vocab_size: int) -> dict:
    """What `tokenizers` trains on these texts: the "model" of its file."""
    import json

    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    hf = tokenizers.Tokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    hf.train_from_iterator(texts, trainer)
    return json.loads(hf.to_str())["model"]


# --- encode_piece, encode_long_piece


@cache
def english() -> Vocabulary:
    """A small vocabulary that was trained on English."""
    return reference.train_bpe([ENGLISH], 360)


def random_merges(rng, symbols: int = 3, merges: int = 12) -> dict:
    """Merges over a small alphabet, in any order; two ways to one string give one id."""
    chance = python_random(rng)
    tokens, pairs = [*"abcdefgh"[:symbols]], []
    for _ in range(merges):
        left, right = chance.choice(tokens), chance.choice(tokens)
        pairs.append((left, right))
        if left + right not in tokens:
            tokens.append(left + right)
    pairs = [*dict.fromkeys(pairs)]
    chance.shuffle(pairs)
    return {(tokens.index(left), tokens.index(right)): (7 * rank, tokens.index(left + right))
            for rank, (left, right) in enumerate(pairs)}


def expect_merged(merge, symbols: list[int], merges: dict, hint: str) -> None:
    shown = f" with the merges {merges}" if len(merges) <= 5 else ""
    wanted = reference.encode_piece(symbols, merges)
    with expect_unchanged(symbols):
        got = merge(symbols, merges)
    expect_equal(got, wanted, of=f"what is left of {symbols}{shown}", hint=hint)


example_of_encode_piece = docstring_example("tokenizer.encode_piece", points=1)


@check("tokenizer.encode_piece", points=3, public=True)
def lowest_rank_first(encode_piece, rng):
    """The merge of the lowest rank is made first,
    wherever it stands and however long its result."""
    a, b, c, d = rng.permutation(50)[:4].tolist()
    expect_merged(encode_piece, [a, b, c], {(a, b): (8, 60), (b, c): (5, 61)},
                  "Two merges are possible here. Which of them comes first is a matter of "
                  "rank, not of place.")
    expect_merged(encode_piece, [a, b, c, d],
                  {(a, b): (3, 60), (60, c): (9, 61), (c, d): (6, 62)},
                  "The longest piece is no aim. Which merge had the lower rank when both were "
                  "possible?")


@check("tokenizer.encode_piece", points=2, public=True)
def leftmost_of_equals(encode_piece, rng):
    """Where one pair stands at several places, the leftmost merges first."""
    a, b = rng.permutation(50)[:2].tolist()
    for symbols in ([a, a, a], [a, a, a, a, a], [b, a, a, a, b]):
        expect_merged(encode_piece, symbols, {(a, a): (4, 60), (60, a): (7, 61)},
                      "Draw the places of the pair in three equal symbols.")


@check("tokenizer.encode_piece", points=2, public=True)
def new_pairs(encode_piece, rng):
    """A merge makes new neighbours,
    and if their rank is lower than all others, they are next."""
    a, b, c = rng.permutation(50)[:3].tolist()
    expect_merged(encode_piece, [a, b, c, c, a],
                  {(a, b): (5, 60), (60, c): (9, 61), (61, c): (2, 62), (62, a): (11, 63)},
                  "Look at all pairs again after every single merge.")
    expect_merged(encode_piece, [a, b, a, b, c],
                  {(a, b): (5, 60), (60, a): (1, 61), (60, c): (3, 62)},
                  "One merge at a time: after the first one, another merge may have the lowest "
                  "rank.")


@check("tokenizer.encode_piece", points=1, public=True)
def nothing_to_merge(encode_piece, rng):
    """Without a possible merge, the symbols are the tokens; the argument stays as it is."""
    for symbols in ([], [7], [7, 8, 9], [0, 0]):
        expect_merged(encode_piece, symbols, {(8, 7): (0, 60)}, "")
    late = {(7, 8): (149_000, 149_256), (149_256, 7): (1_000_000, 150_000)}
    expect_merged(encode_piece, [7, 8, 7], late,
                  "A rank may be any number; what does no merge have instead of one?")


@check("tokenizer.encode_piece", points=2, public=True)
def trained_vocabulary(encode_piece, rng):
    """Words under a trained vocabulary."""
    vocabulary = english()
    for word in (" tokenizer", "inferencer", " engines", "中文", "x" * 12):
        ids = [vocabulary.tokens[reference.bytes_to_unicode()[byte]]
               for byte in word.encode("utf-8")]
        expect_equal(encode_piece(ids, vocabulary.merges),
                     reference.encode_piece(ids, vocabulary.merges),
                     of=f"the tokens of {word!r} under a small trained vocabulary",
                     hint="Take its merges one by one, by hand.")


@st.composite
def merged_symbols(draw, most: int = 9) -> Call:
    """Symbols, and merges of any rank; two ways to one string give one id."""
    ids = dict(zip("abc", draw(st.sampled_from([(0, 1, 2), (7, 11, 1), (12, 1, 2)]))))
    pairs = []
    for _ in range(draw(st.integers(1, 6))):
        pair = draw(st.sampled_from([*ids])), draw(st.sampled_from([*ids]))
        ids.setdefault("".join(pair), 100 + len(ids))
        pairs.append(pair)
    pairs = [*dict.fromkeys(pairs)]
    ranks = draw(st.permutations(range(len(pairs))))
    merges = {(ids[left], ids[right]): (rank, ids[left + right])
              for rank, (left, right) in zip(ranks, pairs)}
    letters = st.sampled_from([ids[letter] for letter in "abc"])
    return Call((draw(st.lists(letters, max_size=most)), merges))


@check("tokenizer.encode_piece", points=2, public=True)
def any_order(encode_piece, rng):
    """Merges of any rank, whose results merge on, in any order."""
    expect_agreement(encode_piece, reference.encode_piece, merged_symbols(), rng, examples=150,
                     hint="Of all merges that are possible now: which one has the lowest rank, "
                          "and where is its leftmost place? Make that one, and look again.")


@check("tokenizer.encode_piece", points=1, public=False)
def any_ranks(encode_piece, rng):
    """Random symbols under random merges, in any order of rank."""
    for _ in range(60):
        expect_merged(encode_piece, rng.integers(0, 3, int(rng.integers(0, 14))).tolist(),
                      random_merges(rng), "")


class CountedMerges(Mapping):
    """Merges that count look-ups. No dict: they stay here when the code runs elsewhere."""

    def __init__(self, merges: Mapping):
        self.merges, self.lookups = merges, 0

    def __getitem__(self, pair: tuple[int, int]) -> tuple[int, int]:
        self.lookups += 1
        return self.merges[pair]

    def __iter__(self):
        return iter(self.merges)

    def __len__(self) -> int:
        return len(self.merges)


example_of_encode_long_piece = docstring_example("tokenizer.encode_long_piece", points=1)


@check("tokenizer.encode_long_piece", points=1, public=True)
def same_as_the_short_way(encode_long_piece, rng):
    """The tokens are those of `encode_piece`."""
    a, b = rng.permutation(50)[:2].tolist()
    expect_merged(encode_long_piece, [a, a, a, a, b],
                  {(a, a): (1, 60), (60, a): (0, 61), (a, b): (2, 62)},
                  "Ranks first, then places from the left. Is every candidate on the heap "
                  "still true when it comes off?")
    z, c = 70, 71
    expect_merged(encode_long_piece, [z, a, b, c],
                  {(b, c): (0, 80), (a, b): (1, 81), (z, a): (2, 82), (a, 80): (3, 83)},
                  "A candidate was put on the heap for two symbols. Are those two still there?")
    for _ in range(10):
        expect_merged(encode_long_piece, rng.integers(0, 3, 9).tolist(),
                      random_merges(rng, merges=5),
                      "Which pairs come into being by a merge, and which disappear?")


@check("tokenizer.encode_long_piece", points=1.5, public=True)
def any_heap(encode_long_piece, rng):
    """Merges of any rank, whose results merge on, in any order."""
    expect_agreement(encode_long_piece, reference.encode_long_piece, merged_symbols(16), rng,
                     examples=150,
                     hint="When a candidate comes off the heap: is its pair still there, with "
                          "both symbols, at this place, and at this rank?")


@check("tokenizer.encode_long_piece", points=2, public=True)
def linear_cost(encode_long_piece, rng):
    """Twice the length takes about twice the look-ups, not four times."""
    counts = []
    for length in (100, 200):
        merges = CountedMerges(english().merges)
        ids = [english().tokens[character] for character in characters(rng, "token", length)]
        got = encode_long_piece(ids, merges)
        expect_equal(got, reference.encode_long_piece(ids, merges.merges),
                     of=f"the tokens of {length} letters")
        counts.append(merges.lookups)
    expect(counts[1] <= 2.6 * counts[0] + 50,
           "the look-ups in `merges` to grow with the length",
           f"{counts[0]} of them for 100 symbols and {counts[1]} for 200",
           "After a merge, only the pairs to its left and to its right are new.")


@check("tokenizer.encode_long_piece", points=0.5, public=False)
def any_long_piece(encode_long_piece, rng):
    """Random symbols under random merges, long and short."""
    for _ in range(60):
        expect_merged(encode_long_piece, rng.integers(0, 3, int(rng.integers(0, 40))).tolist(),
                      random_merges(rng), "")


# --- encode


def code_points(text: str) -> list[int]:
    """An encoder that one can check by eye: the numbers of the characters."""
    return [ord(character) for character in text]


class Recorder:
    """`code_points`, and the texts that it was asked for."""

    def __init__(self):
        self.texts: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return code_points(text)


def expect_encoded(encode, text: str, tokens: list[AddedToken], hint: str,
                   parse_special: bool = True) -> None:
    seen, wanted_texts = Recorder(), Recorder()
    wanted = reference.encode(text, tokens, wanted_texts.encode, parse_special)
    got = encode(text, tokens, seen.encode, parse_special)
    names = ", ".join(flags(token) for token in tokens)
    under = (f"{text!r} with the added tokens {names}"
             + ("" if parse_special else " and parse_special false"))
    expect_equal(seen.texts, wanted_texts.texts,
                 of=f"what is given to `encode_ordinary` of {under}", hint=hint)
    expect_equal(got, wanted, of=f"the ids of {under}", hint=hint)


def flags(token: AddedToken) -> str:
    on = [name for name in ("special", "lstrip", "rstrip", "single_word")
          if getattr(token, name)]
    return f"{token.content!r} ({', '.join([str(token.id), *on])})"


END, START = AddedToken("<end>", 900, special=True), AddedToken("<start>", 901, special=True)


example_of_encode = docstring_example("tokenizer.encode", points=1)


@check("tokenizer.encode", points=3, public=True)
def tokens_between_texts(encode, rng):
    """Added tokens become their ids, what is between them is encoded,
    and nothing is encoded twice or dropped."""
    word = characters(rng, "abc", 3)
    for text in (f"{word}<end>x", f"<start>{word}<end>", f"<end><end>{word}", word, "<end>",
                 f"< end>{word}<end"):
        expect_encoded(encode, text, [END, START],
                       "What is left in front of the first token, and behind the last one?")
    expect_encoded(encode, word, [], "Without added tokens the whole text is ordinary.")
    expect_encoded(encode, "", [END], "`encode_ordinary` is never called for an empty text.")


@check("tokenizer.encode", points=2, public=True)
def first_then_longest(encode, rng):
    """The token that begins first wins, then the longest."""
    tokens = [AddedToken("<", 700), AddedToken("<a", 701), AddedToken("<a><a>", 702),
              AddedToken("a>", 703)]
    for text in ("x<a><a>y", "<a<a>", "<a><b", "a><a>"):
        expect_encoded(encode, text, tokens,
                       "`any_of` finds them in the right way, if you give it all contents at "
                       "once.")


@check("tokenizer.encode", points=3, public=True)
def untrusted_text(encode, rng):
    """With parse_special false, a special token is ordinary text from end to end;
    other added tokens are not."""
    tokens = [END, AddedToken("<tab>", 800), AddedToken("nd", 801)]
    for text in ("hi<end>there<tab>!", "<end>", "<end><tab><end>", "a<end>nd"):
        expect_encoded(encode, text, tokens,
                       "The match is passed over, and its text stays where it is, joined to "
                       "what is around it.", parse_special=False)
        expect_encoded(encode, text, tokens, "With parse_special true, it is a token.")


@check("tokenizer.encode", points=2, public=True)
def flags_of_tokens(encode, rng):
    """lstrip and rstrip swallow white space; single_word wants no word character beside it."""
    for token in (AddedToken("<m>", 600, lstrip=True), AddedToken("<m>", 600, rstrip=True)):
        for text in ("a  <m> \n b", " <m> ", "a<m>b", "<m> <m>", "\u3000<m>\u00a0"):
            expect_encoded(encode, text, [token],
                           "White space on that side belongs to the token, up to the end of "
                           "the token before it.")
    tokens = [AddedToken("<m>", 600, rstrip=True), AddedToken("\n", 602, lstrip=True)]
    for text in ("<m>\nb", "<m> \n\n<m>\n", "a \n<m>", "<m>b\n"):
        expect_encoded(encode, text, tokens,
                       "Has the token before swallowed all of this one? Then nothing is left "
                       "that could be a token.")
    for text in ("word", "a word, swords", "word_", "the word", "éword", "word's"):
        expect_encoded(encode, text, [AddedToken("word", 601, single_word=True)],
                       "Look at the character before the match and the one behind it.")


@st.composite
def added(draw) -> list[AddedToken]:
    """Added tokens of every kind, some of which begin like others, in any order."""
    contents = st.sampled_from([*kinds.TAGS, "<e><e>", "nd", "e", " ", "\n", "."])
    names = ("special", "lstrip", "rstrip", "single_word")
    return [AddedToken(content, 900 + number,
                       **{name: draw(st.sampled_from([False, True, False])) for name in names})
            for number, content in enumerate(draw(st.lists(contents, max_size=3, unique=True)))]


@dataclass(frozen=True)
class Encoding:
    """A text, the added tokens that are looked for in it, and whether its writer is trusted."""

    text: str
    tokens: list[AddedToken]
    parse_special: bool

    def typed(self) -> str:
        listed = ", ".join(flags(token) for token in self.tokens)
        return (f"encode({self.text!r}, added tokens {listed or 'none'}, code_points"
                f"{'' if self.parse_special else ', parse_special=False'})")


def encoded(encode, case: Encoding) -> Seen:
    recorder = Recorder()
    more = () if case.parse_special else (False,)
    tokens = [*case.tokens]
    with expect_unchanged(tokens):
        ids = encode(case.text, tokens, recorder.encode, *more)
    return [("what is given to `encode_ordinary` by", recorder.texts), ("", ids)]


@st.composite
def encodings(draw) -> Encoding:
    """A text that is full of these tokens, of others, and of what may touch them."""
    tokens = draw(added())
    contents = [token.content for token in tokens] or ["a"]
    pieces = texts(contents, contents, ["a", "A", "_", "é"], [" ", "\n", "\u3000", "  "],
                   [content.upper() for content in contents] + kinds.TAGS, long=False)
    return Encoding(draw(pieces), tokens, draw(st.booleans()))


@check("tokenizer.encode", points=2, public=True)
def any_tokens(encode, rng):
    """Added tokens of every kind and spelling, in texts that are full of them."""
    expect_agreement(encode, reference.encode, encodings(), rng, run=encoded, examples=250,
                     hint="`code_points` gives the numbers of the characters. Where does the "
                          "first token begin that counts, and what is left before it? A "
                          "content is a text, not a pattern.")


@check("tokenizer.encode", points=1, public=False)
def as_hugging_face_encodes(encode, rng):
    """Random texts with tokens of every kind, as by Hugging Face's tokenizers."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    alphabet = reference.train_bpe([], 256).tokens
    tokens = [AddedToken("<e>", 256, special=True), AddedToken("<e><e>", 257),
              AddedToken("<e", 258), AddedToken("lt", 259, special=True, lstrip=True),
              AddedToken("rt", 260, rstrip=True, special=True),
              AddedToken("ww", 261, single_word=True),
              AddedToken("bb", 262, lstrip=True, rstrip=True, single_word=True)]
    hf = tokenizers.Tokenizer(models.BPE(vocab=dict(alphabet), merges=[]))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for token in tokens:
        hf.add_tokens([tokenizers.AddedToken(token.content, special=token.special,
                                             lstrip=token.lstrip, rstrip=token.rstrip,
                                             single_word=token.single_word, normalized=False)])
    ordinary = Tokenizer(Vocabulary(alphabet, {}))
    pieces = ["<e>", "lt", "rt", "ww", "bb", " ", "  ", "\n", "x", "é", "_", "<e", "\u3000"]
    for _ in range(60):
        chosen = rng.integers(0, len(pieces), int(rng.integers(1, 12)))
        text = "".join(pieces[i] for i in chosen)
        for parse_special in (True, False):
            hf.encode_special_tokens = not parse_special
            expect_equal(encode(text, tokens, ordinary.encode, parse_special),
                         hf.encode(text).ids, of="the ids")


# --- IncrementalDetokenizer, decode

STREAM = "tokenizer.IncrementalDetokenizer+decode"


def byte_tokenizer(chunks: list[bytes], special: tuple[bytes, ...] = ()) -> Tokenizer:
    """A tokenizer whose token `id` stands for chunks[id], and after these for special ones."""
    characters_of = reference.bytes_to_unicode()
    tokens = {"".join(map(characters_of.get, chunk)): id for id, chunk in enumerate(chunks)}
    added = tuple(AddedToken(content.decode("utf-8"), id, special=True)
                  for id, content in enumerate(special, start=len(chunks)))
    return Tokenizer(Vocabulary(tokens, {}, added))


def in_chunks(data: bytes, rng, longest: int) -> list[bytes]:
    """Bytes cut at random places, into different chunks."""
    chunks, start = [], 0
    while start < len(data):
        length = int(rng.integers(1, longest + 1))
        chunks.append(data[start:start + length])
        start += length
    return chunks


def expect_shown(IncrementalDetokenizer, chunks: list[bytes], hint: str) -> None:
    """What is certain is shown at once: all of it after a whole character, no half before.

    Where broken bytes end the data so far, it is left open whether they are shown now or with
    the next token.
    """
    different = [*dict.fromkeys(chunks)]
    detokenizer = IncrementalDetokenizer(byte_tokenizer(different))
    push = detokenizer.push                              # through a wire each look is a message
    whole = b"".join(chunks).decode("utf-8", errors="replace")
    data, shown = b"", ""
    for number, chunk in enumerate(chunks, start=1):
        data += chunk
        pushed = push(different.index(chunk))
        expect(isinstance(pushed, str), "push to give text", f"a {type(pushed).__name__}", hint)
        shown += pushed
        of = (f"what is shown after {number} of the tokens "
              f"{' | '.join(chunk.hex(' ').upper() for chunk in chunks)}")
        if data[-1] < 0x80 or is_utf8(data):
            expect_text(shown, data.decode("utf-8", errors="replace"), of, hint)
        elif is_utf8(b"".join(chunks)):
            expect_text(shown, data.decode("utf-8", errors="ignore"), of, hint)
        else:
            expect(whole.startswith(shown), f"{of} to be the beginning of {whole!r}",
                   repr(shown), hint)
    expect_text(shown + detokenizer.flush(), whole, f"{of}, and at the end", hint)


def expect_text(got: str, wanted: str, of: str, hint: str) -> None:
    expect(got == wanted, f"{of} to be {wanted!r}", repr(got), hint)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


example_of_incrementaldetokenizer_decode = docstring_example(STREAM, points=1)


@check(STREAM, points=2, public=True)
def decoded_as_a_whole(IncrementalDetokenizer, decode, rng):
    """decode joins the bytes of all tokens before it looks for characters."""
    text = "naïve 中文 👍"
    chunks = [*dict.fromkeys(in_chunks(text.encode("utf-8"), rng, 2))]
    order = rng.integers(0, len(chunks), 12).tolist()
    table = dict(enumerate(chunks))
    expect_equal(decode([0, 1, 2], {0: b"\xe4", 1: b"\xb8", 2: b"\xad!"}), "中!",
                 of="the text of three tokens, E4 | B8 | AD 21",
                 hint="What is not a character by itself may be one together with its "
                      "neighbours.")
    expect_equal(decode(order, table), reference.decode(order, table),
                 of=f"the text of {[chunks[id] for id in order]}",
                 hint="Bytes first, text last; errors='replace'.")


@check(STREAM, points=1, public=True)
def decoded_whatever_comes(IncrementalDetokenizer, decode, rng):
    """Broken bytes read U+FFFD, an id without a token reads nothing."""
    expect_equal(decode([0, 9, 1, 99], {0: b"a\xff", 1: b"b", 9: b""}), "a\ufffdb",
                 of="the text of a FF | (id 9) | b | (id 99)",
                 hint="A vocabulary may be padded: the model can choose an id that no token "
                      "has.")
    expect_equal(decode([], {}), "", of="the text of no ids")


@check(STREAM, points=2, public=True)
def nothing_in_halves(IncrementalDetokenizer, decode, rng):
    """A character that is spread over several tokens is shown when it is whole."""
    for chunks in ([b"caf", b"\xc3", b"\xa9"], [b"\xe4\xb8", b"\xad ok"],
                   [b"\xf0", b"\x9f", b"\x91", b"\x8d!"]):
        expect_shown(IncrementalDetokenizer, chunks,
                     "Keep the bytes that are only the beginning of a character until the "
                     "next token comes.")


@check(STREAM, points=2, public=True)
def nothing_held_back(IncrementalDetokenizer, decode, rng):
    """What is whole is shown at once, and so is what can never become whole."""
    for chunks in ([b"a", b"b\xc3\xa9"], [b"ab\xe4", b"\xb8\xad"], [b"\xff", b"a"],
                   [b"\xe4", b"x"], [b"a\x80", b"b"], [b"\xc3", b"\xc3", b"\xa9"]):
        expect_shown(IncrementalDetokenizer, chunks,
                     "Only an unfinished character at the very end has to wait; three bytes "
                     "at most.")


@check(STREAM, points=2, public=True)
def the_end(IncrementalDetokenizer, decode, rng):
    """flush gives what waits, once; a second text starts clean."""
    different = [b"a\xf0\x9f", b"\x91\x8d", b"z"]
    detokenizer = IncrementalDetokenizer(byte_tokenizer(different))
    expect_equal(detokenizer.push(0), "a", of="what is shown for a F0 9F")
    expect_equal([detokenizer.flush(), detokenizer.flush()], ["\ufffd", ""],
                 of="the end of a text that stops inside a character, asked for twice",
                 hint="What waits is bytes; errors='replace' makes text of them.")
    expect_equal([detokenizer.push(2), detokenizer.flush()], ["z", ""],
                 of="what is shown for z, after flush")


@st.composite
def chunks_of(draw) -> list[bytes]:
    """Bytes in tokens of one to three."""
    data, sizes, found = draw(streams()), draw(st.lists(st.integers(1, 3), max_size=6)), []
    while data:
        size = sizes[len(found) % len(sizes)] if sizes else 1
        found.append(data[:size])
        data = data[size:]
    return found or [b"a"]


@check(STREAM, points=2, public=True)
def any_bytes(IncrementalDetokenizer, decode, rng):
    """Characters of every first byte, in tokens of any size, and bytes that are none."""
    hint = ("How many bytes does the last character want that has begun, and how many are "
            "there?")
    expect_on_all(chunks_of(), lambda case: expect_shown(IncrementalDetokenizer, case, hint),
                  rng, 120)
    table = st.lists(streams(2), min_size=1, max_size=4).map(lambda all: dict(enumerate(all)))
    expect_agreement(decode, reference.decode,
                     calls(st.lists(st.sampled_from([0, 1, 2, 3, 99]), max_size=6), table), rng,
                     hint="Join all bytes first.")


@check(STREAM, points=1, public=False)
def any_stream(IncrementalDetokenizer, decode, rng):
    """Random texts in random tokens: shown at the right moment,
    and joined equal to the whole."""
    for _ in range(12):
        text = characters(rng, "aé中👍 ٣", 8)
        expect_shown(IncrementalDetokenizer, in_chunks(text.encode("utf-8"), rng, 3), "")
        raw = bytes(rng.choice([0x61, 0x80, 0xA9, 0xC3, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0xFF],
                               8).tolist())
        expect_shown(IncrementalDetokenizer, in_chunks(raw, rng, 2), "")


@check(STREAM, points=1, public=False)
def special_tokens_in_a_stream(IncrementalDetokenizer, decode, rng):
    """Special tokens are shown or skipped, as wanted, and unknown ids read nothing."""
    tokenizer = byte_tokenizer([b"a", b"\xc3", b"\xa9"], special=(b"<end>",))
    for skip_special in (True, False):
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special)
        expect_equal([*map(detokenizer.push, (0, 3, 1, 77, 2, 3)), detokenizer.flush()],
                     ["a", "", "", "", "é", "", ""] if skip_special
                     else ["a", "<end>", "", "", "é", "<end>", ""],
                     of=f"what is shown with skip_special {skip_special}")
