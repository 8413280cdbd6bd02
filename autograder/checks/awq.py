"""Checks of AWQ: what the columns of a weight are multiplied with before rounding."""

import numpy as np

from autograder.checking import check, expect, expect_close, expect_error, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checks.quantization import matrix
from gearworks.errors import ModelError
from gearworks.quantization.rounding import int4_codes

EXERCISE = "awq.awq_scale"


def outlying(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    """Inputs of a layer, a few of whose columns are far larger than the others."""
    sizes = np.exp(rng.uniform(-2, 1, columns) + 2.5 * (rng.random(columns) < 0.2))
    return (rng.standard_normal((count, columns)) * sizes).astype(np.float32)


def output_error(weight: np.ndarray, inputs: np.ndarray, scale: np.ndarray,
                 group: int) -> float:
    """The squared error of the outputs, when the weight is rounded under this scale."""
    rounded = int4_codes((weight * scale).astype(np.float32), group).dequantize()
    change = rounded.astype(np.float64) / scale - weight
    return float(np.sum((inputs.astype(np.float64) @ change.T) ** 2))


def candidates(inputs: np.ndarray, grid: int) -> list[np.ndarray]:
    mean = np.abs(inputs.astype(np.float64)).mean(axis=0)
    mean = np.maximum(mean, 1e-4 * mean.max())
    scales = [mean ** (step / grid) for step in range(grid)]
    return [scale / np.sqrt(scale.max() * scale.min()) for scale in scales]


def found(awq_scale, weight: np.ndarray, inputs: np.ndarray, group: int, grid: int,
          of: str) -> np.ndarray:
    """A scale, which has the right shape and is positive."""
    with expect_unchanged(weight, inputs):
        scale = awq_scale(weight, inputs, group, grid)
    expect(isinstance(scale, np.ndarray) and scale.shape == (weight.shape[1],)
           and scale.dtype == np.float32, f"the scale of {of} to be float32 of the shape "
           f"{(weight.shape[1],)}", f"{getattr(scale, 'dtype', type(scale).__name__)} "
           f"{getattr(scale, 'shape', '')}", "One number for each column, that is each input.")
    expect(bool(np.isfinite(scale).all() and (scale > 0).all()),
           f"a scale of {of} with positive numbers only", f"{scale[:6].tolist()} …",
           "The weight is divided by it again.")
    return scale


def expect_best(awq_scale, weight: np.ndarray, inputs: np.ndarray, group: int, grid: int,
                of: str, hint: str = "") -> None:
    """Fail unless no candidate gives better outputs than the scale that was found."""
    scale = found(awq_scale, weight, inputs, group, grid, of)
    right = candidates(inputs, grid)
    errors = [output_error(weight, inputs, each.astype(np.float32), group) for each in right]
    got = output_error(weight, inputs, scale, group)
    expect(got <= 1.005 * min(errors) + 1e-30,
           f"the scale of {of} with the least error of the outputs, {min(errors):.6g}",
           f"one with {got:.6g}, where a = 0 has {errors[0]:.6g}", hint)
    nearest = min(float(np.abs(scale - each).max() / each.max()) for each in right)
    expect(nearest < 2e-5, f"the scale of {of} to be one of the {grid} candidates",
           f"that the nearest candidate differs by a share of {nearest:.3g}",
           "The mean magnitude of each column's inputs to the power of a, over the square root "
           "of the largest times the smallest.")


example_of_awq_scale = docstring_example(EXERCISE, points=1)


@check(EXERCISE, points=2, public=True, always=(11, 8))
def one_candidate(awq_scale, rng):
    """With a grid of one there is only a = 0, which scales nothing; with two there is the
    square root, too."""
    weight, inputs = matrix(rng, 6, 8), outlying(rng, 30, 8)
    expect_close(awq_scale(weight, inputs, 4, 1), np.ones(8, np.float32),
                 of="the scale from a grid of one",
                 hint="m ** 0 is 1, and 1 / sqrt(1 · 1) too.")
    expect_best(awq_scale, weight, inputs, 4, 2, "a grid of two",
                "a is 0 and 1/2. For each: multiply, round, divide, and compare the outputs.")


@check(EXERCISE, points=2, public=True)
def the_best_of_the_grid(awq_scale, rng):
    """The candidate whose outputs are nearest to the right ones."""
    for _ in range(4):
        weight, inputs = matrix(rng, 24, 32), outlying(rng, 60, 32)
        inputs *= np.exp(2 * rng.standard_normal((60, 1))).astype(np.float32)
        expect_best(awq_scale, weight, inputs, 8, 12, "a layer with outlying inputs",
                    "The error is that of the outputs, inputs @ weight.T, not of the weights. "
                    "A scaled weight is divided by its scale again before it is compared.")
    for _ in range(4):
        # a small column of each group meets large inputs: 1, which is no candidate, is best
        weight, inputs = matrix(rng, 24, 32), rng.standard_normal((30, 32)).astype(np.float32)
        weight[:, ::8] *= np.float32(0.2)
        inputs[:, ::8] *= 4
        expect_best(awq_scale, weight, inputs, 8, 2, "small weights that meet large inputs",
                    "The docstring says which a the grid ends with.")


@check(EXERCISE, points=1, public=True, always=(24, 5))
def never_worse(awq_scale, rng):
    """The outputs are never worse than with rounding alone."""
    for inputs in (rng.standard_normal((40, 16)).astype(np.float32), outlying(rng, 5, 16),
                   np.abs(outlying(rng, 40, 16))):
        weight = matrix(rng, 8, 16)
        got = output_error(weight, inputs, found(awq_scale, weight, inputs, 8, 20, "a layer"),
                           8)
        plain = output_error(weight, inputs, np.ones(16, np.float32), 8)
        expect(got <= 1.0001 * plain, f"an error of at most {plain:.6g}", f"{got:.6g}",
               "a = 0 is a candidate, and it scales nothing.")


@check(EXERCISE, points=1, public=True, always=(0,))
def unused_inputs(awq_scale, rng):
    """Columns whose inputs are always 0, and a layer whose inputs are all 0."""
    weight, inputs = matrix(rng, 6, 8), outlying(rng, 30, 8)
    inputs[:, [1, 6]] = 0
    with np.errstate(all="ignore"):
        expect_best(awq_scale, weight, inputs, 4, 8, "a layer with unused inputs",
                    "0 ** a is 0. The docstring says what the mean is never below.")
        expect_close(awq_scale(weight, np.zeros_like(inputs), 4, 8), np.ones(8, np.float32),
                     of="the scale of a layer whose inputs are all 0",
                     hint="Then there is nothing to divide by, and nothing to scale.")
        expect_close(awq_scale(np.zeros_like(weight), inputs, 4, 8), np.ones(8, np.float32),
                     of="the scale of a weight of zeros",
                     hint="Every a gives the same error, 0. Which of equals is taken?")


@check(EXERCISE, points=1, public=False, always=(5,))
def layers_of_all_kinds(awq_scale, rng):
    """Other shapes, large and tiny inputs, and what is refused."""
    for out, columns, group, size in ((1, 4, 2, 1e3), (9, 40, 8, 1e-3), (16, 8, 8, 1)):
        expect_best(awq_scale, matrix(rng, out, columns),
                    outlying(rng, 25, columns) * np.float32(size), group, 10, "a layer")
    inputs = outlying(rng, 9, 8)
    inputs[3, 3] = np.nan
    for grid in (20, 1):
        with expect_error(ModelError, when="an input is nan"):
            with np.errstate(all="ignore"):
                awq_scale(matrix(rng, 4, 8), inputs, 4, grid)
    with expect_error(ModelError, when="rows of 8 are to be cut into groups of 3"):
        awq_scale(matrix(rng, 4, 8), outlying(rng, 9, 8), 3)
