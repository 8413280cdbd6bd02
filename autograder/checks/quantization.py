"""Checks of rounding to few bits: int8 by rows, int4 in groups, float8."""

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned, expect_unchanged)
from autograder.checking.differential import expect_agreement, expect_on_all
from autograder.checking.examples import docstring_example
from autograder.generators.arrays import Numbers, numbers, sizes
from autograder.generators.calls import calls, typed
from gearworks.errors import ModelError
from gearworks.formats.float8 import widen_e4m3
from gearworks.quantization import rounding

INT8, INT4 = "quantization.quantize_int8", "quantization.quantize_int4+pack_int4"
FP8 = "quantization.fp8_e4m3"
NEARLY_HALF = 0.5 + 1e-3        # float32 may round a quotient across the middle of two codes


def matrix(rng: np.random.Generator, out: int, columns: int, spread: float = 1) -> np.ndarray:
    """A weight whose rows are up to e ** spread times larger than each other."""
    return (rng.standard_normal((out, columns))
            * np.exp(spread * rng.uniform(-1, 1, (out, 1)))).astype(np.float32)


def parts(got, count: int, names: str) -> list:
    """What a function gave, which must be so many arrays."""
    expect_returned(got, f"{count} arrays: {names}")
    expect(isinstance(got, (tuple, list)) and len(got) == count,
           f"{count} arrays: {names}", repr(got)[:60])
    return list(got)


def expect_array(array, shape: tuple[int, ...], dtype, of: str, hint: str = "") -> None:
    expect(isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype,
           f"{of} to be an array of {np.dtype(dtype)} with the shape {shape}",
           f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray)
           else repr(array)[:60], hint)


def expect_nearest(codes: np.ndarray, exact: np.ndarray, of: str, hint: str) -> None:
    """Fail unless each code is the whole number nearest to what it should be.

    exact: the same shape, in float64; near the middle of two codes, either will do.
    """
    distance = np.abs(exact - codes.astype(np.float64))
    if (distance <= NEARLY_HALF).all():
        return
    row, column = (int(i) for i in np.argwhere(~(distance <= NEARLY_HALF))[0])
    raise CheckFailure(f"every code of {of} to be the nearest",
                       f"{int((~(distance <= NEARLY_HALF)).sum())} of {codes.size} are not; "
                       f"first: row {row}, column {column}: got {codes[row, column]}, "
                       f"and the exact quotient is {exact[row, column]:.4f}", hint)


# --- int8 -------------------------------------------------------------------------------------


def expect_int8(quantize_int8, weight: np.ndarray, of: str, hint: str = "") -> None:
    """Fail unless the scales are right and every code is the nearest."""
    with expect_unchanged(weight):
        codes, scales = parts(quantize_int8(weight), 2, "codes and scales")
    expect_array(codes, weight.shape, np.int8, f"the codes of {of}", hint)
    expect_array(scales, (len(weight), 1), np.float32, f"the scales of {of}",
                 "One scale for each row, in a column, so that scales * codes has the shape of "
                 "the weight. Do the scales stay float32?")
    largest = np.abs(weight.astype(np.float64)).max(axis=1, keepdims=True)
    # a scale that is hardly above 0 has few bits of its own: one unit of the last is allowed
    expect_close(scales, (largest / 127).astype(np.float32), rtol=1e-6, atol=2e-45,
                 axes=["row", "column"], of=f"the scales of {of}", hint=hint)
    expect(np.abs(codes.astype(int)).max() <= 127, f"codes of {of} from -127 to 127",
           f"{int(codes.min())} to {int(codes.max())}", hint)
    normal = scales[:, 0] > 1e-37
    expect_nearest(codes[normal], weight[normal].astype(np.float64) / scales[normal], of, hint)


example_of_quantize_int8 = docstring_example(INT8, points=1)


@check(INT8, points=1, public=True, always=(1,))
def int8_example(quantize_int8, rng):
    """A row whose largest number is 127 steps away from zero, on either side."""
    sign, step = int(rng.choice([-1, 1])), float(rng.choice([0.25, 2]))
    row = np.array([[sign * 127, 3, -5, 0, 64, sign * -126]], np.float32) * np.float32(step)
    codes, scales = parts(quantize_int8(row), 2, "codes and scales")
    expect_close(scales, np.array([[step]], np.float32), of=f"the scale of {row[0].tolist()}",
                 hint="The number that is farthest from zero gets the code 127 or -127. Which "
                      "scale does that need? Negative numbers can be the farthest, too.")
    expect_equal(codes, (row / step).astype(int).tolist(), of=f"the codes of {row[0].tolist()}",
                 hint="Code times scale is to be the number.")


@check(INT8, points=2, public=True)
def int8_rows_apart(quantize_int8, rng):
    """Every row has its own scale, however much larger its neighbours are."""
    weight = matrix(rng, 5, 7) * np.float32([[1], [1000], [1e-3], [-30], [1]])
    weight[4, 3] = 900                           # a column that is large in one row only
    expect_int8(quantize_int8, weight, "five rows of very different size",
                "A row is one output. The largest magnitude along which axis?")


@check(INT8, points=2, public=True)
def int8_halves(quantize_int8, rng):
    """Numbers between two codes go to the nearer one, and from the middle to the even one."""
    step = np.float32(2.0 ** int(rng.integers(-4, 5)))
    row = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 7.75, -7.75, 0.25]], np.float32)
    codes, _ = parts(quantize_int8(row * step), 2, "codes and scales")
    expect_equal(codes, [[127, 0, 2, 2, 0, -2, -2, 8, -8, 0]],
                 of=f"the codes of {row[0].tolist()}, times {step:g}",
                 hint="What does `astype(np.int8)` do with 7.75? The docstring names the "
                      "function that rounds halves to the even neighbour.")


@check(INT8, points=1, public=True)
def int8_zeros(quantize_int8, rng):
    """A row of zeros has the codes and the scale 0, beside rows that are not."""
    weight = matrix(rng, 3, 6)
    weight[1] = 0
    with np.errstate(all="ignore"):
        codes, scales = parts(quantize_int8(weight.copy()), 2, "codes and scales")
    expect_close(scales[1], np.zeros(1, np.float32), of="the scale of a row of zeros",
                 hint="The scale is the largest magnitude over 127; here it is 0.")
    expect_equal(codes[1], [0] * 6, of="the codes of a row of zeros",
                 hint="What is 0 / 0? Divide by something else where the scale is 0.")
    expect_int8(quantize_int8, weight, "rows beside a row of zeros")


@check(INT8, points=1, public=True)
def int8_not_finite(quantize_int8, rng):
    """A number that is nan or infinite is refused, before anything is made of it."""
    for value in (np.nan, np.inf, -np.inf):
        weight = matrix(rng, 3, 4)
        weight[int(rng.integers(3)), int(rng.integers(4))] = value
        with expect_error(ModelError, when=f"a weight is {value}",
                          hint="`require_finite(weight)` is given. What would a nan make of "
                               "its row's scale?"):
            with np.errstate(all="ignore"):
                quantize_int8(weight)


MATRICES = st.tuples(sizes(2, 1, 3), sizes(2, 1, 5)).flatmap(lambda shape: numbers(
    *shape, values=("plain", "ties", "tiny", "large", "low", "zeros")))


@check(INT8, points=1, public=True)
def any_int8(quantize_int8, rng):
    """Matrices of any shape, large, tiny, tied and zero, in any layout."""
    def demand(weight: Numbers) -> None:
        expect_int8(quantize_int8, weight.made(), f"`quantize_int8({weight.typed()})`",
                    "Of each row: the largest magnitude, over 127. Then each number over that.")
    with np.errstate(all="ignore"):
        expect_on_all(MATRICES, demand, rng)


@check(INT8, points=0.5, public=True)
def int8_extremes(quantize_int8, rng):
    """Rows near the largest and the smallest float32 neither overflow nor wrap around."""
    rows = rng.uniform(-1, 1, (6, 9)).astype(np.float32)
    rows[:, 0] = 1
    sizes = np.float32([[3.4e38], [-3.4e38], [1e-30], [1e-36], [2e-43], [1.4e-45]])
    with np.errstate(all="ignore"):
        hint = ("A number divided by its row's scale, and rounded: can it be 128? Near 0 a "
                "scale has few bits of its own. And int8 ends at 127.")
        expect_int8(quantize_int8, rows * sizes, "rows near the ends of float32", hint)
        small = np.float32([[190 * 1.4e-45, -190 * 1.4e-45, 1.4e-45]])
        codes, scales = quantize_int8(small)
    error = np.abs(scales.astype(np.float64) * codes - small).max()
    expect(error <= 64 * 1.5e-45 and np.abs(codes.astype(int)).max() <= 127,
           "the smallest numbers to come back within half a step, codes from -127 to 127",
           f"an error of {error:.3g}, codes from {int(codes.min())} to {int(codes.max())}",
           hint)


@check(INT8, points=0.5, public=False)
def int8_matrices(quantize_int8, rng):
    """Matrices of all shapes, of one number too, and views of others."""
    for out, columns in ((1, 1), (7, 3), (2, 65), (16, 16)):
        expect_int8(quantize_int8, matrix(rng, out, columns, 4), "a random matrix")
    expect_int8(quantize_int8, matrix(rng, 9, 6, 2).T, "a transposed matrix")
    expect_int8(quantize_int8, matrix(rng, 8, 12)[::2, 1::3], "a view with gaps")


# --- int4 -------------------------------------------------------------------------------------


def expect_int4(quantize_int4, weight: np.ndarray, group: int, of: str, hint: str = "") -> None:
    """Fail unless scales and zero points are right and every code is the nearest."""
    with expect_unchanged(weight):
        codes, scales, zeros = parts(quantize_int4(weight, group), 3,
                                     "codes, scales and zero points")
    shape = (len(weight), weight.shape[1] // group)
    expect_array(codes, weight.shape, np.uint8, f"the codes of {of}", hint)
    expect_array(scales, shape, np.float32, f"the scales of {of}",
                 hint or "One for each group of a row: (out, in / group_size).")
    expect_array(zeros, shape, np.uint8, f"the zero points of {of}", hint)
    exact = weight.astype(np.float64).reshape(*shape, group)
    lows, highs = np.minimum(exact.min(-1), 0), np.maximum(exact.max(-1), 0)
    expect_close(scales, ((highs - lows) / 15).astype(np.float32), rtol=1e-6, atol=2e-45,
                 axes=["row", "group"], of=f"the scales of {of}", hint=hint)
    expect(codes.max() <= 15 and zeros.max() <= 15, f"codes and zero points of {of} up to 15",
           f"{int(codes.max())} and {int(zeros.max())}", hint)
    normal = scales > 1e-37
    steps = np.where(normal, scales, 1).astype(np.float64)
    expect_nearest(np.where(normal, zeros, 0), np.where(normal, -lows / steps, 0),
                   f"the zero points of {of}", hint)
    wanted = (exact / steps[..., None] + zeros[..., None]).clip(0, 15)
    wanted = np.where(normal[..., None], wanted, codes.reshape(exact.shape))
    expect_nearest(codes, wanted.reshape(codes.shape), of, hint)


example_of_quantize_int4_pack_int4 = docstring_example(INT4, points=1)


@check(INT4, points=1, public=True)
def int4_example(quantize_int4, pack_int4, rng):
    """A group that reaches from -5 to 10 steps: its zero point is 5."""
    step = float(rng.choice([0.5, 4]))
    row = np.array([[-5, 0, 1, 10, 3, -2, 7, 6]], np.float32) * np.float32(step)
    codes, scales, zeros = parts(quantize_int4(row, 8), 3, "codes, scales and zero points")
    of = f"the group {row[0].tolist()}"
    expect_close(scales, np.array([[step]], np.float32), of=f"the scale of {of}",
                 hint="There are 16 codes. How many steps are between the first and the last?")
    expect_equal(zeros, [[5]], of=f"the zero point of {of}",
                 hint="The zero point is the code of 0: how many steps is 0 above the smallest "
                      "number?")
    expect_equal(codes, [[0, 5, 6, 15, 8, 3, 12, 11]], of=f"the codes of {of}",
                 hint="A code stands for scale * (code - zero point). Solve that for the code.")


@check(INT4, points=2, public=True, always=(1,))
def int4_groups_apart(quantize_int4, pack_int4, rng):
    """Every group of every row has its own scale and zero point."""
    sizes = np.repeat(np.float32([[1, 100, 1e-2], [30, 1, 5]]), 4, axis=1)
    weight = matrix(rng, 2, 12) * sizes
    weight[0, 4:8] += 150                                # two groups far away from the others
    weight[1, 8:] -= 40
    expect_int4(quantize_int4, weight, 4, "two rows of three groups of very different size",
                "`reshape` can cut each row into groups. A group is neighbours of one row.")


@check(INT4, points=2, public=True, always=(5,))
def int4_reaches_zero(quantize_int4, pack_int4, rng):
    """A group all on one side of 0 reaches to 0, and a weight of 0 comes back as 0."""
    for side in (1, -1):
        weight = side * rng.uniform(3, 5, (2, 8)).astype(np.float32)
        expect_int4(quantize_int4, weight, 4,
                    f"groups of {'positive' if side > 0 else 'negative'} numbers",
                    "The zero point is a code, so it must be one of 0 to 15: let the range "
                    "include 0.")
    weight = matrix(rng, 6, 8)
    weight[:, 2] = 0
    codes, scales, zeros = parts(quantize_int4(weight, 4), 3, "codes, scales and zero points")
    expect_equal(codes[:, 2], zeros[:, 0].tolist(), of="the codes of weights that are 0",
                 hint="A weight of 0 has the zero point for its code: round the two apart, "
                      "then add.")


@check(INT4, points=2, public=True)
def int4_halves(quantize_int4, pack_int4, rng):
    """Weights and zero points go to the nearest whole number, from the middle to the even
    one."""
    step = np.float32(2.0 ** int(rng.integers(-4, 5)))
    for low, zero, rest, wanted in (
            (-2.5, 2, [0.5, 1.5, 3.5, -0.5, -1.5, 2.75], [2, 4, 6, 2, 0, 5]),
            (-3.5, 4, [0.5, 1.5, 2.5, -0.5, -2.5, 4.25], [4, 6, 6, 4, 2, 8]),
            (-6.75, 7, [0.5, 1.5, 2.5, -0.5, -4.25, 6.75], [7, 9, 9, 7, 3, 14])):
        row = np.array([[low, low + 15, *rest]], np.float32) * step
        codes, _, zeros = parts(quantize_int4(row, 8), 3, "codes, scales and zero points")
        of = f"{row[0].tolist()}, a group whose scale is {step:g}"
        expect_equal(zeros, [[zero]], of=f"the zero point of {of}",
                     hint="The zero point is a whole number: the nearest to -low / scale.")
        expect_equal(codes[0, 2:], wanted, of=f"the codes, from the third on, of {of}",
                     hint="Round weight / scale by itself, with halves to the even neighbour, "
                          "then add the zero point.")


@check(INT4, points=1, public=True, always=(0,))
def int4_constant_groups(quantize_int4, pack_int4, rng):
    """Groups of zeros, and groups of one number, have codes that bring them back."""
    value = float(rng.uniform(1, 9))
    weight = np.repeat(np.array([[0, value, -value]], np.float32), 4, axis=1)
    with np.errstate(all="ignore"):
        codes, scales, zeros = parts(quantize_int4(weight.copy(), 4), 3,
                                     "codes, scales and zero points")
    expect_equal(codes[0, :4], [0] * 4, of="the codes of a group of zeros",
                 hint="What is 0 / 0? Divide by something else where the scale is 0.")
    expect_close(scales[0, :1], np.zeros(1, np.float32), of="the scale of a group of zeros")
    back = scales.repeat(4, axis=1) * (codes.astype(np.float32) - zeros.repeat(4, axis=1))
    expect_close(back.astype(np.float32), weight,
                 of=f"what the codes stand for, of four times 0, {value:.4g} and {-value:.4g},",
                 hint="All alike, but not zero: the range is from 0 to the number.")


@check(INT4, points=1, public=True)
def int4_refuses(quantize_int4, pack_int4, rng):
    """Numbers that are not finite are refused, and groups that a row cannot be cut into."""
    for value in (np.nan, np.inf, -np.inf):
        weight = matrix(rng, 3, 8)
        weight[int(rng.integers(3)), int(rng.integers(8))] = value
        with expect_error(ModelError, when=f"a weight is {value}",
                          hint="`require_finite(weight)` is given."):
            with np.errstate(all="ignore"):
                quantize_int4(weight, 4)
    with expect_error(ModelError, when="rows of 8 are to be cut into groups of 3",
                      hint="`require_groups(weight, group_size)` is given."):
        quantize_int4(matrix(rng, 3, 8), 3)


@check(INT4, points=2, public=True)
def packs_neighbours(quantize_int4, pack_int4, rng):
    """Byte j holds code 2j in its low four bits, code 2j + 1 in its high ones."""
    codes = rng.integers(0, 16, (4, 8)).astype(np.uint8)
    codes[:, 0], codes[:, 1] = 3, 12
    with expect_unchanged(codes):
        got = pack_int4(codes)
    expect_array(got, (4, 4), np.uint8, "four rows of eight codes, packed,",
                 "Two codes make one byte.")
    expect_equal(got, (codes[:, ::2] + 16 * codes[:, 1::2].astype(int)).tolist(),
                 of=f"the bytes of {codes.tolist()}",
                 hint="Which two codes share a byte: neighbours, or one of each half? Which of "
                      "them is in the low bits?")


@check(INT4, points=1, public=True)
def packs_only_what_fits(quantize_int4, pack_int4, rng):
    """An odd number of codes, or a code above 15, is refused."""
    for codes, why in (([[1, 2, 3]], "there are three codes"),
                       ([[1, 16]], "a code is 16"), ([[200, 1]], "a code is 200")):
        with expect_error(ValueError, when=why,
                          hint="A fifth bit would run into the neighbour."):
            pack_int4(np.array(codes, np.uint8))


@st.composite
def grouped(draw) -> tuple[Numbers, int]:
    """A matrix, and a size of groups that divides its rows."""
    size, groups = draw(sizes(2, 1, 4)), draw(sizes(1, 2, 3))
    values = ("plain", "ties", "tiny", "large", "low", "zeros")
    return draw(numbers(draw(sizes(1, 2, 3)), size * groups, values=values)), size


@check(INT4, points=1, public=True)
def any_int4(quantize_int4, pack_int4, rng):
    """Matrices in groups of any size, large, tiny, on one side of zero, and zero; codes of
    any shape."""
    def demand(case: tuple[Numbers, int]) -> None:
        weight, size = case
        expect_int4(quantize_int4, weight.made(), size,
                    f"`quantize_int4({weight.typed()}, {size})`",
                    "The smallest and the largest number of the group, and 0: fifteen steps "
                    "from the least of them to the greatest.")
    with np.errstate(all="ignore"):
        expect_on_all(grouped(), demand, rng)
    code = st.sampled_from([1, 0, 15, 8, 16, 255])
    codes = st.tuples(sizes(1, 2), sizes(2, 0, 4, 3)).flatmap(lambda shape: st.lists(
        st.lists(code, min_size=shape[1], max_size=shape[1]), min_size=shape[0],
        max_size=shape[0]).map(lambda rows: np.array(rows, np.uint8)))
    expect_agreement(pack_int4, rounding.pack_int4, calls(codes), rng,
                     hint="Which code is in the low four bits of byte 0? What cannot be packed "
                          "is refused.")


@check(INT4, points=0.5, public=True)
def int4_extremes(quantize_int4, pack_int4, rng):
    """Groups near the largest and the smallest float32 neither overflow nor wrap around."""
    rows = rng.uniform(-1, 1, (6, 8)).astype(np.float32)
    rows[:, :2] = 1, -1
    sizes = np.float32([[3.4e38], [1e38], [1e-30], [1e-36], [2e-43], [1.4e-45]])
    with np.errstate(all="ignore"):
        hint = ("The largest float32 minus its negative is infinite in float32. And a quotient "
                "that is rounded may lie beyond 15: cut it off there.")
        expect_int4(quantize_int4, rows * sizes, 8, "groups near the ends of float32", hint)
        small = np.float32([[-22, 0, 0, 0, 0, 0, 0, 0], [22, -22, 0, 0, 0, 0, 0, 0]]) * 1e-45
        codes, scales, zeros = quantize_int4(small.astype(np.float32), 8)
    back = scales.astype(np.float64) * (codes.astype(int) - zeros.astype(int))
    error = np.abs(back - small).max()
    expect(error <= 12 * 1.5e-45 and zeros.max() <= 15 and codes.max() <= 15,
           "the smallest numbers to come back within a few of their own steps, codes and zero "
           "points up to 15", f"an error of {error:.3g}, {int(codes.max())} and "
           f"{int(zeros.max())}", hint)


@check(INT4, points=0.5, public=False)
def int4_matrices(quantize_int4, pack_int4, rng):
    """Matrices and groups of all shapes, views of others, and packing of any number of axes."""
    for out, columns, group in ((1, 2, 2), (7, 96, 32), (3, 64, 64), (5, 12, 3), (2, 6, 1)):
        expect_int4(quantize_int4, matrix(rng, out, columns, 4), group, "a random matrix")
    expect_int4(quantize_int4, matrix(rng, 8, 6, 2).T, 4, "a transposed matrix")
    expect_int4(quantize_int4, matrix(rng, 8, 24)[::2, ::3], 4, "a view with gaps")
    for shape in ((6,), (2, 3, 4), (0, 2), (5, 0)):
        codes = rng.integers(0, 16, shape).astype(np.uint8)
        expect_equal(pack_int4(codes), rounding.pack_int4(codes).tolist(), of="packed codes")


# --- float8 -----------------------------------------------------------------------------------


def expect_e4m3(fp8_e4m3, x: np.ndarray, of: str, hint: str = "") -> None:
    """Fail unless every number has the right code; any nan will do for nan."""
    with expect_unchanged(x), np.errstate(all="ignore"):
        got = fp8_e4m3(x)
    expect_array(got, x.shape, np.uint8, f"the codes of {of}", hint)
    wanted = rounding.fp8_e4m3(x)
    wrong = (got != wanted) & ~(np.isnan(x) & (got & 0x7F == 0x7F))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        mine, right = (f"0x{int(code[place]):02X}, which is "
                       f"{widen_e4m3(np.array([code[place]]))[0]:g}" for code in (got, wanted))
        raise CheckFailure(f"the code of {float(x[place])!r} to be {right}",
                           f"{mine}; {int(wrong.sum())} of {x.size} codes of {of} are wrong",
                           hint)


def numbers_of_e4m3() -> np.ndarray:
    """All finite E4M3 numbers from 0 on, in the order of their codes."""
    return widen_e4m3(np.arange(0x7F, dtype=np.uint8))


example_of_fp8_e4m3 = docstring_example(FP8, points=1)


@check(FP8, points=1.5, public=True)
def fp8_its_own_numbers(fp8_e4m3, rng):
    """What is an E4M3 number already keeps its value, whatever its sign."""
    numbers = numbers_of_e4m3()[8:]                       # the others: see small numbers
    x = np.concatenate([numbers, -numbers])[rng.permutation(2 * len(numbers))]
    expect_e4m3(fp8_e4m3, x, "numbers that E4M3 has",
                "float32 has the sign, 8 bits of exponent with the bias 127, 23 of fraction. "
                "Here it is 4 bits with the bias 7, and 3. 1.0 is 0x38.")


@check(FP8, points=1, public=True)
def fp8_nearest(fp8_e4m3, rng):
    """Anything else becomes the nearest number, also where that has the next exponent."""
    numbers = numbers_of_e4m3()[8:]
    low, high = numbers[:-1], numbers[1:]
    for share in (0.05, 0.45, 0.55, 0.95):
        x = (low + (high - low) * np.float32(share)) * rng.choice([-1, 1], len(low))
        expect_e4m3(fp8_e4m3, x.astype(np.float32), "numbers between two neighbours",
                    "Is the fraction rounded, or cut off? What if rounding it up carries into "
                    "the exponent, as from 1.99 to 2?")


@check(FP8, points=2, public=True)
def fp8_halves(fp8_e4m3, rng):
    """From the middle between two numbers, to the one whose code is even."""
    numbers = numbers_of_e4m3()[8:]
    middles = (numbers[:-1] + numbers[1:]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (0, 1000)]
    expect_e4m3(fp8_e4m3, np.concatenate([middles, -middles, *near]),
                "numbers in the middle of two neighbours, and next to it",
                "1.0625 is in the middle of 1 (0x38) and 1.125 (0x39). Add a little less than "
                "half of the last bit kept, and when is it exactly half?")


@check(FP8, points=1, public=True)
def fp8_saturates(fp8_e4m3, rng):
    """What is beyond 448 becomes 448, on either side, and infinity does."""
    x = np.float32([448, 449, 463, 464, 465, 480, 500, 512, 1e4, 3e38, np.inf,
                    float(rng.uniform(500, 9000))])
    expect_e4m3(fp8_e4m3, np.concatenate([x, -x]), "numbers near 448 and beyond",
                "Behind 448, 0x7E, comes the code of nan. Where do you stop?")


@check(FP8, points=1, public=True)
def fp8_small_numbers(fp8_e4m3, rng):
    """Below 2^-6 the numbers are multiples of 2^-9; what is nearer to 0 is 0, with its
    sign."""
    steps = np.arange(0, 8.75, 0.25)
    x = np.concatenate([steps, rng.uniform(0, 8, 20), [1e-4, 1e-30, 1e-45]]) * 2.0**-9
    x = np.concatenate([x, np.nextafter(np.float32(2**-10 * np.arange(1, 16)), 0),
                        np.nextafter(np.float32(2**-10 * np.arange(1, 16)), 1)])
    x = x.astype(np.float32)
    expect_e4m3(fp8_e4m3, np.concatenate([x, -x]), "small numbers",
                "The exponent has no more room: codes 0 to 7 are 0 to 7 times 2^-9, and code 8 "
                "is 2^-6. What is -0?")


@check(FP8, points=1, public=True, always=(2,))
def fp8_nan(fp8_e4m3, rng):
    """nan stays nan, in the midst of others and in any shape."""
    x = rng.standard_normal((3, 2, 4)).astype(np.float32)
    x[1, 0, 2], x[2, 1, 0] = np.nan, -np.nan
    expect_e4m3(fp8_e4m3, x, "a block with nan in it",
                "The code of nan has all seven lower bits set. Does your limit at 448 let a "
                "nan through?")


@check(FP8, points=1, public=True)
def any_fp8(fp8_e4m3, rng):
    """Numbers on both sides of every step and half-way, large, tiny, infinite, and nan."""
    steps = numbers_of_e4m3()
    halves = (steps[:-1] + steps[1:]) / 2
    exact = st.sampled_from([*steps.tolist(), *halves.tolist(), 448.1, 1e9, np.inf, np.nan])
    number = st.builds(lambda value, sign, nudge: np.float32(sign) * np.nextafter(
        np.float32(value), np.float32(nudge)) if nudge else np.float32(sign * value),
        exact, st.sampled_from([1, -1]), st.sampled_from([0, 0, 1e9, -1e9]))
    lists = st.lists(number, max_size=4).map(lambda values: np.array(values, np.float32))
    expect_on_all(lists, lambda x: expect_e4m3(
        fp8_e4m3, x, f"`fp8_e4m3({typed(x)})`", "Between which two numbers does it lie, and "
        "which of their codes is even?"), rng, 120)


@check(FP8, points=0.5, public=False)
def fp8_all_exponents(fp8_e4m3, rng):
    """Every upper half that a float32 can have, with random bits below it."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    low = rng.integers(0, 2**16, 2**16, dtype=np.uint32)
    for bits in (upper, upper | low, upper | np.uint32(0xFFFF)):
        expect_e4m3(fp8_e4m3, bits.view(np.float32), "numbers of every size")
