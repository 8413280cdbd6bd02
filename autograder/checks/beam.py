"""Checks of beam search's step."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (check, expect, expect_close, expect_equal, expect_returned,
                                 expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.checks.sampling import true_logprobs
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import Call
from gearworks.beam import Hypothesis
from gearworks.beam import best_continuations as reference

BEST = "beam.best_continuations"


def beams(rng: np.random.Generator, B: int, length: int,
          V: int) -> tuple[list[Hypothesis], np.ndarray]:
    """Beginnings with their scores, and the log-probabilities of their next tokens."""
    running = [Hypothesis(tuple(rng.integers(0, V, length).tolist()),
                          float(np.float32(-rng.uniform(0, 3)))) for _ in range(B)]
    logits = 2 * rng.standard_normal((B, V))
    return running, np.array([true_logprobs(row) for row in logits], np.float32)


def expect_best(best_continuations, running: Sequence[Hypothesis], logprobs: np.ndarray,
                count: int, hint: str) -> None:
    scores = logprobs + np.float32([[hypothesis.score] for hypothesis in running])
    order = sorted((-float(scores[beam, token]), beam, token)
                   for beam in range(len(running)) for token in range(scores.shape[1]))
    with expect_unchanged(logprobs):
        got = best_continuations(list(running), logprobs, count)
    expect_returned(got, "pairs of a beam's number and a Hypothesis")
    case = f"of {len(running)} beams and {logprobs.shape[1]} tokens"
    expect_equal(len(got), min(count, scores.size),
                 of=f"the number of continuations, {count} wanted, {case},")
    for rank, (entry, (score, beam, token)) in enumerate(zip(got, order)):
        expect(isinstance(entry, tuple | list) and len(entry) == 2
               and isinstance(entry[1], Hypothesis),
               "pairs of a beam's number and a Hypothesis", f"{entry!r:.60}")
        expect_equal((entry[0], list(entry[1].ids)), (beam, [*running[beam].ids, token]),
                     of=f"the beam and the ids of continuation {rank}, best first, {case},",
                     hint=hint)
        expect_close(np.float64(entry[1].score), np.float64(-score),
                     of=f"the score of continuation {rank}", dtype=None, atol=1e-5,
                     hint="The sum of the log-probabilities of all its tokens.")


example_of_best_continuations = docstring_example(BEST, points=1)


@check(BEST, points=1, public=True)
def of_the_whole_table(best_continuations, rng):
    """The best of all beams and tokens, each longer by one token,
    with the number of the beam that it continues."""
    for count in (1, 4, 9):
        expect_best(best_continuations, *beams(rng, 3, 2, 8), count,
                    "Add each beam's score to its row. A strong beam may give several, a weak "
                    "one none.")


@check(BEST, points=1, public=True)
def ties_and_few(best_continuations, rng):
    """Of equal scores the lower beam and the lower id come first;
    of few candidates all come."""
    running = [Hypothesis((1,), -1.0), Hypothesis((2,), -0.5)]
    logprobs = np.float32([[-1, -2, -1, -2], [-1.5, -2.5, -1.5, -4]])
    expect_best(best_continuations, running, -rng.integers(1, 4, (2, 50)).astype(np.float32),
                30, "Many scores are equal here.")
    for count in (2, 3, 5, 8, 20):
        expect_best(best_continuations, running, logprobs, count,
                    "A stable sort leaves equal scores in the order of the flat table.")


@st.composite
def tables(draw) -> Call:
    """Beams, their next tokens, and how many are wanted: exact numbers, and so many ties."""
    B, V, length = draw(sizes(2, 1, 3)), draw(sizes(3, 1, 5)), draw(sizes(1, 0, 2))
    running = [Hypothesis(tuple(draw(st.lists(st.sampled_from([7, 11, 1]), min_size=length,
                                              max_size=length))),
                          draw(st.sampled_from([-1.0, 0.0, -0.5, -4.0]))) for _ in range(B)]
    logprobs = draw(numbers(B, V, values=("ties", "zeros")))
    return Call((running, logprobs, draw(st.integers(1, B * V + 2))))


@check(BEST, points=1, public=True)
def any_table(best_continuations, rng):
    """Any number of beams and tokens, as many wanted as there are or more, and ties."""
    expect_agreement(best_continuations, reference, tables(), rng,
                     hint="Write down the table of all sums, a row for each beam. Of equal "
                          "sums the upper row, then the left column.")


@check(BEST, points=0.5, public=False)
def the_first_step(best_continuations, rng):
    """One beam that is empty yet; beams with impossible tokens."""
    expect_best(best_continuations, [Hypothesis((), 0.0)], beams(rng, 1, 0, 11)[1], 4, "")
    running, logprobs = beams(rng, 3, 4, 6)
    logprobs[rng.random((3, 6)) < 0.6] = -np.inf
    logprobs[1, 2] = -0.5
    expect_best(best_continuations, running, logprobs, int((logprobs > -np.inf).sum()), "")


@check(BEST, points=0.5, public=False)
def beams_of_every_kind(best_continuations, rng):
    """Many beams, many tokens, as many wanted as there are beams or twice as many."""
    for B, V in ((5, 300), (2, 7), (8, 40)):
        for count in (B, 2 * B):
            expect_best(best_continuations, *beams(rng, B, 6, V), count, "")
