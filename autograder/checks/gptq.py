"""Checks of GPTQ: the Hessian, and rounding with error feedback."""

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_unchanged)
from autograder.checking.differential import expect_on_all
from autograder.checking.examples import docstring_example
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import Call, calls, typed
from autograder.checks.quantization import expect_array, matrix, parts
from gearworks.errors import ModelError
from gearworks.quantization.gptq import gptq_hessian as reference_hessian
from gearworks.quantization.gptq import inverse_factor
from gearworks.quantization.rounding import from_zero_points, quantize_int4

HESSIAN, QUANTIZE = "gptq.gptq_hessian", "gptq.gptq_quantize"
NAMES = "codes, scales and zero points"
# float32 and float64 may drift apart along the columns; by how much of a step
DRIFT = 0.02


def correlated(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    """Inputs of a layer: columns of different size, which go together."""
    mix = rng.standard_normal((columns, columns)) * np.exp(rng.uniform(-1, 1, columns))
    return (rng.standard_normal((count, columns)) @ mix
            + rng.standard_normal((count, 1))).astype(np.float32)


# --- the Hessian ------------------------------------------------------------------------------


def expect_hessian(gptq_hessian, inputs: np.ndarray, damping: float, of: str,
                   hint: str) -> None:
    with expect_unchanged(inputs):
        got = gptq_hessian(inputs, damping)
    wide = inputs.astype(np.float64)
    right = 2 / len(wide) * wide.T @ wide
    right += damping * np.mean(np.diag(right)) * np.eye(len(right))
    size = float(np.abs(right).max())
    expect_close(got, right.astype(np.float32), rtol=1e-4, atol=1e-5 * size,
                 axes=["row", "column"], of=f"the Hessian of {of}, damping {damping:g},",
                 hint=hint)


example_of_gptq_hessian = docstring_example(HESSIAN, points=1)


@check(HESSIAN, points=2, public=True)
def two_over_n(gptq_hessian, rng):
    """Without damping: 2/n times the inputs' products with each other."""
    for count in (12, 3, 1):
        expect_hessian(gptq_hessian, correlated(rng, count, 4), 0.0,
                       f"{count} input{'s' * (count > 1)} of 4 numbers",
                       "One row of the inputs is one token. The matrix is (in, in): which way "
                       "round is the product? The error is a mean over tokens.")


@check(HESSIAN, points=1, public=True)
def damped(gptq_hessian, rng):
    """The diagonal, and nothing else, grows by a share of its mean."""
    for damping in (0.01, 0.5):
        expect_hessian(gptq_hessian, correlated(rng, 9, 5), damping, "9 inputs of 5 numbers",
                       "The mean is that of the diagonal, before anything is added to it, and "
                       "every element of the diagonal gets the same.")
    inputs = correlated(rng, 3, 6)
    inputs[:, 2] = 0
    expect_hessian(gptq_hessian, inputs, 0.01, "3 inputs of 6 numbers, one column zero,",
                   "A column that is always 0 counts in the mean, like any other.")
    got = gptq_hessian(inputs)
    expect_close(got, gptq_hessian(inputs, 0.01), of="the Hessian with the default damping",
                 hint="The signature says what `damping` is when nobody gives it.")


@check(HESSIAN, points=1, public=True)
def inputs_without_meaning(gptq_hessian, rng):
    """Inputs that are nan, infinite or all zero are refused."""
    for value in (np.nan, np.inf):
        inputs = correlated(rng, 4, 3)
        inputs[int(rng.integers(4)), int(rng.integers(3))] = value
        with expect_error(ModelError, when=f"an input is {value}",
                          hint="`require_finite` is given."):
            gptq_hessian(inputs)
    with expect_error(ModelError, when="all inputs are zero",
                      hint="Then every weight would do, and the matrix has no inverse."):
        gptq_hessian(np.zeros((4, 3), np.float32))


@check(HESSIAN, points=0.5, public=True)
def any_hessian(gptq_hessian, rng):
    """Inputs of any number and size, large, tiny and tied, with any damping."""
    def demand(call: Call) -> None:
        (inputs, damping), _ = call.made()
        if inputs.any():
            expect_hessian(gptq_hessian, inputs, damping,
                           f"`{typed(call, 'gptq_hessian')}`",
                           "Two over the number of inputs, times the sum of their products; "
                           "then the diagonal.")
    inputs = st.tuples(sizes(2, 1, 5), sizes(2, 1, 3)).flatmap(lambda shape: numbers(
        *shape, values=("plain", "ties", "tiny", "large")))
    expect_on_all(calls(inputs, st.sampled_from([0.01, 0.5, 0.0])), demand, rng)


@check(HESSIAN, points=0.5, public=False)
def hessians_of_all_sizes(gptq_hessian, rng):
    """Large and tiny inputs, few and many, in float32 throughout."""
    for count, columns, size in ((200, 8, 1e4), (2, 30, 1e-3), (64, 1, 1), (7, 7, 30)):
        inputs = correlated(rng, count, columns) * np.float32(size)
        expect_hessian(gptq_hessian, inputs, 0.02, f"{count} inputs", "")


# --- rounding with feedback -------------------------------------------------------------------


def compensated(weight: np.ndarray, factor: np.ndarray, order: np.ndarray,
                rounded: np.ndarray, upto: int) -> np.ndarray:
    """The weight when the turn of column order[upto] comes: (out, in), in the given order.

    rounded: (out, in), what the columns before it were rounded to.
    """
    left = weight.astype(np.float64)[:, order]
    for j in range(upto):
        error = (left[:, j] - rounded[:, order[j]]) / factor[j, j]
        left[:, j + 1:] -= np.outer(error, factor[j, j + 1:])
    return left


def expect_fed_back(gptq_quantize, weight: np.ndarray, hessian: np.ndarray, group: int,
                    act_order: bool, of: str, hint: str) -> None:
    """Fail unless every column is the nearest to what the columns before it left of it.

    What they left is computed from the codes that were given, so a code that could as well
    have been its neighbour is no mistake, and has no consequences.
    """
    with expect_unchanged(weight, hessian):
        got = gptq_quantize(weight, hessian, group, act_order)
    codes, scales, zeros = parts(got, 3, NAMES)
    shape = (len(weight), weight.shape[1] // group)
    for array, size, dtype, name in ((codes, weight.shape, np.uint8, "codes"),
                                     (scales, shape, np.float32, "scales"),
                                     (zeros, shape, np.uint8, "zero points")):
        expect_array(array, size, dtype, f"the {name} of {of}", hint)
    rounded = from_zero_points(codes, scales, zeros).dequantize().astype(np.float64)
    order = (np.argsort(-np.diag(hessian), kind="stable") if act_order
             else np.arange(weight.shape[1]))
    factor = inverse_factor(hessian[np.ix_(order, order)])
    for at, column in enumerate(order):
        left = compensated(weight, factor, order, rounded, at)
        number = column // group
        if act_order:
            basis = weight[:, number * group:(number + 1) * group]
        else:
            basis = left[:, at:at + group]
        if act_order or at % group == 0:
            wanted, zero = (part[:, 0] for part in quantize_int4(
                basis.astype(np.float32), group)[1:])
            expect_close(scales[:, number], wanted, rtol=2e-3, axes=["row"],
                         atol=1e-5 * float(np.abs(weight).max()),
                         of=f"the scales of group {number} of {of}",
                         hint="With `act_order` the scales are those of the weight as it was "
                              "given." if act_order else
                              "A group's scale is found when its first column's turn comes, "
                              "in what is left by then.")
            low = np.abs(zeros[:, number].astype(int) - zero.astype(int))
            expect(low.max() <= 1, f"zero points of group {number} of {of} near "
                   f"{zero.tolist()}", f"{zeros[:, number].tolist()}", hint)
        exact = left[:, at] / np.maximum(scales[:, number], 1e-30) + zeros[:, number]
        distance = np.abs(exact.clip(0, 15) - codes[:, column])
        if (distance > 0.5 + DRIFT).any():
            row = int(np.argmax(distance))
            raise CheckFailure(
                f"every column of {of} to be the nearest to what is left of it",
                f"column {column}, row {row}: got the code {codes[row, column]}, and what is "
                f"left is {exact[row]:.3f} codes", hint)


example_of_gptq_quantize = docstring_example(QUANTIZE, points=1)


@check(QUANTIZE, points=2, public=True)
def independent_columns(gptq_quantize, rng):
    """Where inputs do not go together, nothing can be made up for: the nearest codes."""
    weight = matrix(rng, 5, 8)
    hessian = np.diag(rng.uniform(1, 9, 8)).astype(np.float32)
    got = parts(gptq_quantize(weight, hessian, 4), 3, NAMES)
    for mine, right, name in zip(got, quantize_int4(weight, 4), NAMES.replace(" and", ",")
                                 .split(", ")):
        expect_close(np.asarray(mine), right, dtype=right.dtype, rtol=1e-5, atol=1e-7,
                     of=f"the {name} under a diagonal Hessian",
                     hint="Round a column as `quantize_int4` does: what is left / scale, to "
                          "the nearest, plus the zero point, from 0 to 15.")


@check(QUANTIZE, points=2, public=True, always=(1,))
def feeds_back(gptq_quantize, rng):
    """Each column's error is made up for by all columns after it, in its group and beyond."""
    weight = matrix(rng, 4, 12)
    hessian = reference_hessian(correlated(rng, 60, 12))
    hint = ("`inverse_factor` gives U. The error of column j, divided by U[j, j], times the "
            "rest of row j of U, is taken from the columns after it. The error is what was "
            "left, less what it was rounded to.")
    expect_fed_back(gptq_quantize, weight, hessian, 12, False, "a matrix of one group", hint)
    expect_fed_back(gptq_quantize, weight, hessian, 4, False, "a matrix of three groups", hint)


@check(QUANTIZE, points=3, public=True, always=(3,))
def better_than_nearest(gptq_quantize, rng):
    """On the inputs that the Hessian was made of, the outputs are nearer to the right ones."""
    worse = 0
    for _ in range(3):
        weight, inputs = matrix(rng, 16, 32), correlated(rng, 200, 32)
        hessian = reference_hessian(inputs)
        errors = [np.mean((inputs @ (from_zero_points(*each).dequantize() - weight).T) ** 2)
                  for each in (gptq_quantize(weight, hessian, 16), quantize_int4(weight, 16))]
        worse += not errors[0] < 0.9 * errors[1]
    expect(not worse, "outputs that are nearer than with the nearest codes, for three layers",
           f"that they are not for {worse}",
           "The checks above look at single columns.")


@check(QUANTIZE, points=2, public=True)
def in_the_order_of_activity(gptq_quantize, rng):
    """With act_order the columns with the largest diagonal come first; scales are of the
    weight as given, and everything comes back in its place."""
    weight, inputs = matrix(rng, 4, 12), correlated(rng, 60, 12)
    inputs *= np.float32(3) ** rng.permutation(np.linspace(-1, 1, 12)).astype(np.float32)
    hessian = reference_hessian(inputs)
    expect_fed_back(gptq_quantize, weight, hessian, 4, True, "a matrix with act_order",
                    "Sort the rows and the columns of the Hessian alike. Column `order[j]` is "
                    "the j-th, but it stays in its own group, and its code in its own place.")


@check(QUANTIZE, points=1, public=True)
def what_cannot_be_done(gptq_quantize, rng):
    """Groups that do not fit, weights that are not finite, a Hessian without an inverse."""
    hessian = reference_hessian(correlated(rng, 20, 6))
    with expect_error(ModelError, when="rows of 6 are to be cut into groups of 4",
                      hint="`quantize_int4` refuses that already."):
        gptq_quantize(matrix(rng, 3, 6), hessian, 4)
    weight = matrix(rng, 3, 6)
    weight[1, 4] = np.nan
    with expect_error(ModelError, when="a weight is nan",
                      hint="`quantize_int4` of the whole weight refuses that already."):
        with np.errstate(all="ignore"):
            gptq_quantize(weight, hessian, 3)
    with expect_error(ModelError, when="the Hessian is all zeros",
                      hint="`inverse_factor` raises it."):
        gptq_quantize(matrix(rng, 3, 6), np.zeros((6, 6), np.float32), 3)


@check(QUANTIZE, points=1, public=False)
def matrices_of_all_shapes(gptq_quantize, rng):
    """One row, one group, groups of one column, groups of zeros, ties in the order."""
    for out, columns, group, act_order in ((1, 8, 2, False), (3, 6, 1, False), (2, 4, 4, True),
                                           (7, 30, 5, True), (5, 24, 8, False)):
        weight = matrix(rng, out, columns)
        inputs = correlated(rng, 50, columns)
        with np.errstate(all="ignore"):
            expect_fed_back(gptq_quantize, weight, reference_hessian(inputs), group,
                            act_order, "a random matrix", "")
    weight = matrix(rng, 3, 8)
    weight[:, :4] = 0
    with np.errstate(all="ignore"):
        got = gptq_quantize(weight, reference_hessian(correlated(rng, 40, 8)), 4)
    expect_equal(got[0][:, :4], [[0] * 4] * 3, of="the codes of groups of zeros")
    same = np.eye(8, dtype=np.float32) * 2 + np.float32(0.5)
    expect_fed_back(gptq_quantize, matrix(rng, 3, 8), same, 4, True,
                    "columns that are equally active", "")
