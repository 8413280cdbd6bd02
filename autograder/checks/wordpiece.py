"""Checks of WordPiece, against the `tokenizers` library."""

from hypothesis import strategies as st

from autograder.checking import check, expect_equal
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.calls import Call
from autograder.generators.configurations import some
from gearworks.vocabularies import wordpiece as reference


def expect_pieces(longest_match, word: str, pieces: set[str], hint: str, **options) -> None:
    expect_equal(longest_match(word, pieces, **options),
                 reference.longest_match(word, pieces, **options),
                 of=f"the pieces of {word!r} in the list {sorted(pieces)}", hint=hint)


example_of_longest_match = docstring_example("wordpiece.longest_match", points=1)


@check("wordpiece.longest_match", points=1, public=True)
def longest_first(longest_match, rng):
    """From the left, the longest piece that is in the list."""
    end = "abcdef"[int(rng.integers(6))]
    expect_pieces(longest_match, "unaffable" + end,
                  {"un", "una", "##aff", "##ff", "##able", "##a", f"##{end}"},
                  "Try the whole rest first, then one character less, and so on.")


@check("wordpiece.longest_match", points=1, public=True)
def prefixes(longest_match, rng):
    """Only the first piece has no prefix, and the prefix is a setting."""
    expect_pieces(longest_match, "abab", {"ab", "##ab"},
                  "The list says which pieces may begin a word.")
    expect_pieces(longest_match, "abab", {"ab", "@@ab"}, "Use the prefix that is given.",
                  prefix="@@")
    expect_pieces(longest_match, "abab", {"##ab"}, "The first piece has no prefix.")


@check("wordpiece.longest_match", points=1, public=True)
def unknown_words(longest_match, rng):
    """A word of which any part is missing is unknown as a whole; so is one that is too long."""
    expect_pieces(longest_match, "abxab", {"ab", "##ab"}, "Nothing of the word is kept.")
    expect_pieces(longest_match, "ab" * 6, {"ab", "##ab"}, "Compare the length first.",
                  longest_word=11, unknown="<?>")
    expect_pieces(longest_match, "ab" * 6, {"ab", "##ab"},
                  "A word of exactly that length is not too long.", longest_word=12)
    expect_pieces(longest_match, "", {"ab"}, "")


@st.composite
def listed(draw) -> Call:
    """A word, and a list of pieces in which most of it can be found."""
    piece = st.sampled_from(["a", "b", "ab", "U", "n", "Un", "un", "é", "e\u0301", "中", "aa"])
    parts = draw(st.lists(piece, max_size=6))
    options = draw(some(prefix=st.sampled_from(["@@", ""]), unknown=st.just("<?>"),
                        longest_word=st.sampled_from([0, 3, 6])))
    listed = draw(st.sampled_from([{*parts}, {*parts}, {*parts[1:]}]))
    first, rest = (listed | draw(st.sets(piece, max_size=3)) for _ in range(2))
    before = options.get("prefix", "##")
    return Call(("".join(parts), first | {before + each for each in rest}), options)


@check("wordpiece.longest_match", points=1.5, public=True)
def any_word(longest_match, rng):
    """Words and lists of every kind, with any settings."""
    expect_agreement(longest_match, reference.longest_match, listed(), rng, examples=150,
                     hint="Write down what is tried at the first place, longest first, and "
                          "then at the next.")


@check("wordpiece.longest_match", points=0.5, public=False)
def as_bert(longest_match, rng):
    """Random words and lists, as by Hugging Face's WordPiece."""
    from tokenizers import Tokenizer, models

    def text(length: int) -> str:
        return "".join("abc"[i] for i in rng.integers(0, 3, length))

    for _ in range(60):
        pieces = {before + text(int(rng.integers(1, 4))) for before in ("", "##")
                  for _ in range(8)}
        ids = {piece: id for id, piece in enumerate(["[UNK]", *sorted(pieces)])}
        hf = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=18))
        word = text(int(rng.integers(0, 22)))
        expect_equal(longest_match(word, pieces, longest_word=18), hf.encode(word).tokens,
                     of="the pieces")
