"""Checks of the Unigram model, against the `tokenizers` library."""

from hypothesis import strategies as st

from autograder.checking import check, expect, expect_equal, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.calls import calls
from autograder.generators.texts import texts
from gearworks.vocabularies import unigram as reference


def expect_best(best_pieces, text: str, scores: dict[str, float], hint: str) -> None:
    with expect_unchanged(scores):
        got = best_pieces(text, scores)
    expect_equal(got, reference.best_pieces(text, scores),
                 of=f"the best pieces of {text!r} with the scores {scores}", hint=hint)


example_of_best_pieces = docstring_example("unigram.best_pieces", points=1)


@check("unigram.best_pieces", points=1, public=True)
def highest_sum(best_pieces, rng):
    """The sum of all scores decides, not the best first piece."""
    low = -float(rng.integers(6, 9))
    expect_best(best_pieces, "abc", {"ab": -1.0, "a": -4.0, "bc": -0.5, "c": low},
                "Write down every cut, with its sum.")
    expect_best(best_pieces, "abcd",
                {"a": -1.0, "b": -1.0, "c": -1.0, "d": -1.0, "abcd": -3.5, "ab": -2.5},
                "Fewer pieces are not better by themselves.")


@check("unigram.best_pieces", points=1, public=True)
def unknown_characters(best_pieces, rng):
    """Unknown characters are cut off alone, and unknown neighbours are one piece."""
    expect_best(best_pieces, "xxay", {"a": -1.0, "bb": -2.0},
                "Which characters are no piece by themselves?")
    expect_best(best_pieces, "xa", {"a": -1.0, "xa": -11.5},
                "An unknown character costs the lowest score and ten more.")
    expect_best(best_pieces, "xa", {"a": -1.0, "xa": -3.0, "b": -20.0},
                "The lowest score of all, not of those that fit.")


@check("unigram.best_pieces", points=1, public=True)
def long_text(best_pieces, rng):
    """A long text takes no longer than its length asks for."""
    scores = {"a": -1.0, "aa": -1.5, "ab": -1.7, "b": -2.0, "aab": -2.2}
    text = "".join("ab"[i] for i in rng.integers(0, 2, 600))
    got = best_pieces(text, scores)
    expect("".join(got) == text, "the pieces to be the text, cut",
           "another text when they are joined")
    total, best = (sum(map(scores.get, pieces))
                   for pieces in (got, reference.best_pieces(text, scores)))
    expect(abs(total - best) < 1e-6, f"a cut of 600 characters with the sum {best:.1f}",
           f"one with the sum {total:.1f}",
           "The best cut of a text ends with a piece, and what is before that piece is cut in "
           "the best way, too.")


@check("unigram.best_pieces", points=2.5, public=True)
def any_scores(best_pieces, rng):
    """Texts and scores of every kind, with ties and unknown characters."""
    pieces = st.sampled_from(["a", "b", "ab", "ba", "aa", "aba", "x", "é", "bb"])
    scores = st.dictionaries(pieces, st.sampled_from([-1.0, -2.0, -0.5, -3.0, -20.0, 0.0]),
                             min_size=1, max_size=5)
    expect_agreement(best_pieces, reference.best_pieces,
                     calls(texts(["a", "b", "ab"], ["x", "y", "é"], most=5, long=False),
                           scores), rng, examples=150,
                     hint="Write down every cut with its sum. Of equal sums, whose last piece "
                          "is longest?")


@check("unigram.best_pieces", points=0.5, public=False)
def as_sentencepiece(best_pieces, rng):
    """Random texts and scores, ties included, as by Hugging Face's Unigram."""
    from tokenizers import Tokenizer, models

    def text(alphabet: str, length: int) -> str:
        return "".join(alphabet[i] for i in rng.integers(0, len(alphabet), length))

    for number in range(80):
        scores = {}
        for _ in range(9):
            piece = text("abé", int(rng.integers(1, 5)))
            scores[piece] = float(-rng.integers(1, 6)) if number % 2 else -5 * rng.random()
        hf = Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0))
        sentence = text("abéx" if number % 3 else "abé", int(rng.integers(0, 14)))
        expect_equal(best_pieces(sentence, scores),
                     [sentence[a:b] for a, b in hf.encode(sentence).offsets], of="the pieces")
