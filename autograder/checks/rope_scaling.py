"""Checks of RoPE that is stretched for longer texts."""

import math

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect_close, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.calls import calls

EXERCISE = "rope_scaling.llama3_frequencies"


def truth(frequencies: np.ndarray, factor: float, low: float, high: float,
          context: int) -> np.ndarray:
    """From the definition, hand by hand, in float64."""
    out = []
    for frequency in frequencies.astype(np.float64).tolist():
        turns = context * frequency / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(kept * frequency + (1 - kept) * frequency / factor)
    return np.array(out, np.float32)


def hands(head_dim: int, theta: float) -> np.ndarray:
    return (theta ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)


example_of_llama3_frequencies = docstring_example(EXERCISE, points=1)


@check(EXERCISE, points=1, public=True)
def fast_and_slow(llama3_frequencies, rng):
    """A hand that turns often stays as it is;
    one that never gets round once is slowed by the factor."""
    factor, context = float(rng.choice([2.0, 8.0, 32.0])), int(rng.integers(400, 900))
    frequencies = np.float32([1.0, 2 * math.pi * 0.4 / context])
    right = np.float32([frequencies[0], frequencies[1] / factor])
    expect_close(llama3_frequencies(frequencies, factor, 1.0, 4.0, context), right, atol=0,
                 axes=["hand"],
                 of=f"hands of {context / (2 * math.pi):.0f} and 0.4 turns in the context and "
                    f"a factor of {factor:g},",
                 hint="A frequency is in radians a token. How many turns is that, over the "
                      "whole context?")


@check(EXERCISE, points=1, public=True)
def in_between(llama3_frequencies, rng):
    """Between the two limits, the slowed and the original frequency are mixed
    in proportion to the turns."""
    low, high = 1.0, float(rng.choice([3.0, 4.0, 6.0]))
    turns = np.sort(rng.uniform(low, high, 5))[::-1]
    frequencies = (2 * math.pi * turns / 1_000).astype(np.float32)
    with expect_unchanged(frequencies):
        got = llama3_frequencies(frequencies, 8.0, low, high, 1_000)
    expect_close(got, truth(frequencies, 8.0, low, high, 1_000), atol=0, rtol=2e-5,
                 axes=["hand"],
                 of=f"hands of {', '.join(f'{n:.1f}' for n in turns)} turns, with limits "
                    f"{low:g} and {high:g},",
                 hint="At the upper limit all of the original is kept, at the lower one "
                      "nothing, half-way a half.")


@check(EXERCISE, points=1.5, public=True)
def any_limits(llama3_frequencies, rng):
    """Hands of any speed, with any factor, limits and context."""
    speeds = st.lists(st.sampled_from([1.0, 0.5, 0.1, 0.03, 0.01, 0.004, 0.001, 1e-4]),
                      min_size=1, max_size=4).map(lambda speeds: np.array(speeds, np.float32))
    expect_agreement(llama3_frequencies, truth,
                     calls(speeds, st.sampled_from([8.0, 2.0, 32.0]),
                           st.sampled_from([1.0, 2.0]), st.sampled_from([4.0, 7.5]),
                           st.sampled_from([512, 64, 8192])), rng, name="llama3_frequencies",
                     atol=0.0, rtol=3e-5,
                     hint="How often does this hand turn in the context, and on which side of "
                          "the two limits is that?")


@check(EXERCISE, points=0.5, public=False)
def whole_models(llama3_frequencies, rng):
    """All hands of Llama 3.1, of Llama 3.2, and of heads and limits of other kinds."""
    any_hands = hands(int(rng.integers(3, 40)) * 2, 1e4)
    any_factor, any_context = float(rng.uniform(1.5, 9)), int(rng.integers(60, 900))
    for model in ((hands(128, 5e5), 8.0, 1.0, 4.0, 8_192),
                  (hands(64, 5e5), 32.0, 1.0, 4.0, 8_192),
                  (any_hands, any_factor, 2.0, 7.5, any_context)):
        right = truth(*model)
        expect_close(llama3_frequencies(*model), right, atol=0, rtol=3e-5)
