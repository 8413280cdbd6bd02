"""Checks of a mixture of experts."""

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect, expect_close, expect_equal, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import Call

EXERCISE = "moe.route"


def expect_route(route, scores: np.ndarray, k: int, normalize: bool, hint: str = "") -> None:
    wide = scores.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    ranked = [sorted(range(scores.shape[1]), key=lambda expert: (-row[expert], expert))
              for row in scores]
    experts = np.array([row[:k] for row in ranked], int).reshape(len(scores), k)
    right = np.take_along_axis(shares, experts, axis=-1)
    if normalize:
        right = right / right.sum(axis=-1, keepdims=True)
    with expect_unchanged(scores):
        got = route(scores, k, normalize)
    expect(isinstance(got, tuple | list) and len(got) == 2, "two arrays, experts and weights",
           repr(got)[:60])
    of = f"{k} of {scores.shape[1]} experts for {len(scores)} tokens"
    chosen = np.asarray(got[0])
    expect(chosen.dtype.kind in "iu", f"the numbers of {of} to be integers", f"{chosen.dtype}")
    expect_equal(chosen.shape, experts.shape, of=f"the shape of {of}")
    expect_equal(chosen, experts, of=of,
                 hint=hint or "The best expert first; of two that are equal, the earlier one.")
    expect_close(got[1], right.astype(np.float32),
                 of=f"the weights of {of}, {'' if normalize else 'not '}normalized,",
                 axes=["token", "place"],
                 hint=hint or "The softmax is over all experts; choosing comes after it.")


example_of_route = docstring_example(EXERCISE, points=0.5)


@check(EXERCISE, points=1, public=True)
def best_first(route, rng):
    """Each token's best experts, in order, with their probabilities among all experts."""
    expect_route(route, (2 * rng.standard_normal((5, 7))).astype(np.float32), 3, False)


@check(EXERCISE, points=1, public=True)
def normalized(route, rng):
    """Normalized, the weights of the chosen experts sum to one."""
    expect_route(route, (2 * rng.standard_normal((4, 6))).astype(np.float32), 2, True,
                 "Divide by the sum of the chosen ones, of each token for itself.")


@check(EXERCISE, points=1, public=True, always=(0,))
def equals(route, rng):
    """Of experts with equal scores the earlier one comes first."""
    scores = rng.integers(0, 2, (6, 8)).astype(np.float32)
    expect_route(route, scores, 3, True,
                 "`np.argsort` keeps the order of equals when it is told to be stable.")


def ranked(scores: np.ndarray, k: int, normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """What is right, in float64: of experts with equal scores the earlier one first."""
    wide = scores.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True, initial=-1e9))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    experts = np.argsort(-wide, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(shares, experts, axis=-1)
    if normalize:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    return experts, chosen.astype(np.float32)


@st.composite
def routings(draw) -> Call:
    """Scores of any number of tokens and experts, of which any number are chosen."""
    experts = draw(sizes(3, 1, 5, 16))
    scores = draw(numbers(draw(sizes(1, 2, 3, 0)), experts,
                          values=("plain", "ties", "tiny", "zeros", "low")))
    return Call((scores, draw(st.integers(1, experts)), draw(st.booleans())))


@check(EXERCISE, points=0.5, public=True)
def any_scores(route, rng):
    """Any number of tokens, experts and chosen ones, scores of any size, and ties."""
    expect_agreement(route, ranked, routings(), rng, name="route",
                     hint="Softmax over all experts of the token; the k largest, of equals "
                          "the earlier one; their probabilities.")


@check(EXERCISE, points=0.5, public=False, always=(6,))
def large_scores(route, rng):
    """Scores of several hundred, each token for itself."""
    for normalize in (False, True):
        expect_route(route, (12 * rng.standard_normal((5, 9)) + 500).astype(np.float32), 4,
                     normalize)


@check(EXERCISE, points=0.5, public=False)
def odd_numbers(route, rng):
    """One expert, all experts, many experts, no tokens."""
    for T, E, k in ((3, 1, 1), (2, 5, 5), (3, 64, 6), (0, 4, 2)):
        for normalize in (False, True):
            expect_route(route, rng.standard_normal((T, E)).astype(np.float32), k, normalize)
