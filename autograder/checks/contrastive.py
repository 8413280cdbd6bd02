"""Checks of the two contrastive methods, against their definitions in float64."""

import math

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect_close, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_on_all
from autograder.checks.sampling import (IMPOSSIBLE, apart, logits_of, random_logits,
                                        true_logprobs)
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import Call, typed

# --- contrastive_decoding

DECODING = "contrastive.contrastive_decoding"


def expect_contrast(contrastive_decoding, expert: np.ndarray, amateur: np.ndarray, alpha: float,
                    of: str, hint: str, atol: float = 1e-4) -> None:
    expert_logprobs, amateur_logprobs = true_logprobs(expert), true_logprobs(amateur)
    taken = expert_logprobs >= expert_logprobs.max() + math.log(alpha)
    right = np.full(len(expert), IMPOSSIBLE)
    right[taken] = (expert_logprobs - amateur_logprobs)[taken]
    with expect_unchanged(expert, amateur), np.errstate(all="ignore"):
        got = contrastive_decoding(expert, amateur, alpha)
    expect_close(got, right, of=of, axes=["token"], atol=atol, hint=hint)


def threshold(expert: np.ndarray, rng: np.random.Generator) -> float:
    """An alpha that lies clearly between two tokens."""
    shares = np.exp(true_logprobs(expert) - true_logprobs(expert).max())
    return apart([1e-3, *shares], rng)


example_of_contrastive_decoding = docstring_example(DECODING, points=0.5)


@check(DECODING, points=1, public=True)
def what_only_the_expert_knows(contrastive_decoding, rng):
    """A token's new logit is how much likelier the expert finds it than the amateur does."""
    order = rng.permutation(4)
    expert = np.array([0.5, 0.3, 0.15, 0.05])[order]
    amateur = np.array([0.7, 0.05, 0.05, 0.2])[order]
    expect_contrast(contrastive_decoding, logits_of(expert) + np.float32(2),
                    logits_of(amateur) - np.float32(1), 0.01,
                    f"the new logits, with the probabilities {expert.tolist()} and "
                    f"{amateur.tolist()} and alpha 0.01,",
                    "Both in log-probabilities, so that it does not matter how large a model's "
                    "logits are.")


@check(DECODING, points=1, public=True)
def what_the_expert_takes_seriously(contrastive_decoding, rng):
    """Tokens less than alpha times as likely as the expert's likeliest are ruled out."""
    expert = rng.permutation([0.5, 0.24, 0.16, 0.08, 0.02])
    amateur = np.array([0.03, 0.17, 0.2, 0.2, 0.4])
    for alpha in (0.1, 0.4, 1.0):
        expect_contrast(contrastive_decoding, logits_of(expert), logits_of(amateur), alpha,
                        f"the new logits, with the expert's probabilities {expert.tolist()} "
                        f"and alpha {alpha},",
                        "The likeliest has 0.5. How likely must a token be? Only the expert is "
                        "asked.")


@st.composite
def pairs(draw) -> tuple[Call, float]:
    """An expert, an amateur, and an alpha that lies clearly between two tokens."""
    V = draw(sizes(3, 1, 5))
    expert = draw(numbers(V, values=("plain", "ties", "tiny", "low")))
    amateur = draw(numbers(V, values=("plain", "ties", "large")))
    made = expert.made()
    shares = np.sort(np.exp(true_logprobs(made) - true_logprobs(made).max()))
    gaps = [(a + b) / 2 for a, b in zip([0, *shares], shares) if b - a > 1e-3]
    alpha = draw(st.sampled_from(gaps or [0.5]))
    return Call((expert, amateur, round(float(alpha), 6)))


@check(DECODING, points=1, public=True)
def any_pair(contrastive_decoding, rng):
    """Any expert and any amateur, sure and unsure, with any alpha."""
    def demand(call: Call) -> None:
        (expert, amateur, alpha), _ = call.made()
        expect_contrast(contrastive_decoding, expert, amateur, alpha,
                        f"`{typed(call, 'contrastive_decoding')}`",
                        "Both as log-probabilities; which tokens does the expert take "
                        "seriously?", 2e-3 if abs(expert).max() > 100 else 1e-4)
    expect_on_all(pairs(), demand, rng)


@check(DECODING, points=0.5, public=False)
def experts_of_every_kind(contrastive_decoding, rng):
    """Large and tiny logits, impossible tokens, an amateur who is sure of the wrong thing."""
    for scale in (1e-3, 1.0, 30.0):
        expert, amateur = (random_logits(rng, 30, scale=scale) for _ in range(2))
        expect_contrast(contrastive_decoding, expert, amateur,
                        threshold(expert, rng) if scale >= 1 else 0.1, "the new logits", "",
                        1e-3)
        expert[rng.permutation(30)[:20]] = IMPOSSIBLE
        expect_contrast(contrastive_decoding, expert, -amateur * np.float32(3), 0.05,
                        "the new logits", "", 1e-3)


# --- contrastive_scores

SCORES = "contrastive.contrastive_scores"


def expect_scores(contrastive_scores, probabilities: np.ndarray, candidates: np.ndarray,
                  past: np.ndarray, alpha: float, of: str, hint: str) -> None:
    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        a, b = a.astype(np.float64), b.astype(np.float64)
        return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))

    right = np.float32([(1 - alpha) * float(probability)
                        - alpha * max(cosine(candidate, earlier) for earlier in past)
                        for probability, candidate in zip(probabilities, candidates)])
    with expect_unchanged(probabilities, candidates, past):
        got = contrastive_scores(probabilities, candidates, past, alpha)
    expect_close(got, right, of=of, axes=["candidate"], atol=1e-5, hint=hint)


def states(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


example_of_contrastive_scores = docstring_example(SCORES, points=0.5)


@check(SCORES, points=0.5, public=True)
def by_hand(contrastive_scores, rng):
    """A candidate that points where an earlier token points is punished for it,
    however long its vector is."""
    candidates = np.float32([[3, 0], [0, 0.5], [-2, 0]])
    order = rng.permutation(3)
    expect_scores(contrastive_scores, np.float32([0.5, 0.3, 0.2])[order], candidates[order],
                  np.float32([[4, 0], [3, 4]]), 0.5, "the scores",
                  "The largest cosines are 1, 0.8 and -0.6. Cosines do not know lengths.")


@check(SCORES, points=0.5, public=True)
def the_most_alike_counts(contrastive_scores, rng):
    """Of all earlier tokens the most alike one counts, for each candidate by itself."""
    for alpha in (0.6, 0.0, 1.0):
        expect_scores(contrastive_scores, np.float32([0.4, 0.3, 0.2, 0.1]), states(rng, 4, 9),
                      states(rng, 7, 9), alpha,
                      f"the scores of 4 candidates after 7 tokens, alpha {alpha},",
                      "Which axis of the table (candidates, earlier tokens) does the maximum "
                      "run over?")


@check(SCORES, points=1, public=True)
def past_of_one(contrastive_scores, rng):
    """One earlier token, one candidate, and a likeness below zero."""
    past = states(rng, 1, 6)
    expect_scores(contrastive_scores, np.float32([0.9]), -past, past, 0.3,
                  "the score of a candidate opposite to the past",
                  "Its likeness is -1, and that is in its favour.")
    expect_scores(contrastive_scores, np.float32([0.5, 0.25]), states(rng, 2, 6), past, 0.4,
                  "the scores after a single token", "")


@st.composite
def candidates(draw) -> Call:
    """Candidates and a past of any number and size, large and tiny vectors."""
    k, S, D = draw(sizes(2, 1, 4)), draw(sizes(2, 1, 3)), draw(sizes(2, 3, 9, 128))
    vectors = [draw(numbers(count, D, values=("plain", "large"))) for count in (k, S)]
    return Call((draw(numbers(k, values=("plain", "ties"))), *vectors,
                 draw(st.sampled_from([0.5, 0.0, 1.0, 0.3]))))


@check(SCORES, points=1, public=True)
def any_past(contrastive_scores, rng):
    """Candidates and a past of any number, long vectors and short ones, any alpha."""
    def demand(call: Call) -> None:
        arguments, _ = call.made()
        if all(np.abs(vectors).sum(axis=-1).all() for vectors in arguments[1:3]):
            expect_scores(contrastive_scores, *arguments,
                          of=f"`{typed(call, 'contrastive_scores')}`",
                          hint="The largest cosine of each candidate, whatever the lengths.")
    expect_on_all(candidates(), demand, rng)


@check(SCORES, points=0.5, public=False)
def states_of_every_kind(contrastive_scores, rng):
    """Large and tiny hidden states, as many candidates as earlier tokens, many of both."""
    for k, S, D, scale in ((5, 5, 5, 200.0), (3, 40, 12, 1e-3), (12, 2, 33, 1.0)):
        probabilities = rng.dirichlet(np.ones(k)).astype(np.float32)
        candidates, past = states(rng, k, D, scale=scale), states(rng, S, D)
        candidates[0] = past[-1] * np.float32(3)
        expect_scores(contrastive_scores, probabilities, candidates, past,
                      float(rng.uniform(0.1, 0.9)), "the scores", "")
