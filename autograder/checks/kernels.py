"""Checks of the kernels: the CPU's product of a vector with a matrix of four bits."""

import numpy as np

from autograder.checking import check, expect, expect_close, expect_unchanged

INT4 = "kernels.cpu.int4_matvec"
OUTPUT = ["output"]


def float32(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def words_of(codes: np.ndarray) -> np.ndarray:
    """Codes (16 · blocks, 32 · groups), 0 to 15, as the exercise describes them."""
    blocks, groups = len(codes) // 16, codes.shape[1] // 32
    words = np.zeros((blocks, groups, 4, 16), np.uint32)
    for (row, column), code in np.ndenumerate(codes):
        byte, half = column % 4, column % 8 // 4
        words[row // 16, column // 32, column % 32 // 8, row % 16] |= np.uint32(
            int(code) << 8 * byte + 4 * half)
    return words


def by_lane(numbers: np.ndarray) -> np.ndarray:
    """Numbers (16 · blocks, groups) as (blocks, groups, 16)."""
    return np.ascontiguousarray(numbers.reshape(-1, 16, numbers.shape[1]).transpose(0, 2, 1))


def true_product(codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray,
                 x: np.ndarray) -> np.ndarray:
    """From the definition, in float64. scales, minimums: (16 · blocks, groups)."""
    weights = (codes * np.repeat(scales.astype(np.float64), 32, axis=1)
               + np.repeat(minimums.astype(np.float64), 32, axis=1))
    return (weights @ x.astype(np.float64)).astype(np.float32)


def multiplied(int4_matvec, codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray,
               x: np.ndarray) -> np.ndarray:
    """What the function writes, into memory that was not empty."""
    words, scales, minimums = words_of(codes), by_lane(scales), by_lane(minimums)
    y = np.full(len(codes), np.float32(-77))
    with expect_unchanged(words, scales, minimums, x,
                          hint="The weights serve every token, and x the next product: only y "
                               "is written to."):
        int4_matvec(words, scales, minimums, x, y)
    return y


def matrix(rng: np.random.Generator, blocks: int, groups: int, scale: float = 0.1):
    """Random codes, scales of both signs, and minimums that do not follow from them."""
    return (rng.integers(0, 16, (16 * blocks, 32 * groups)),
            float32(rng, 16 * blocks, groups, scale=scale),
            float32(rng, 16 * blocks, groups, scale=scale))


@check(INT4, points=2, public=True)
def one_code(int4_matvec, rng):
    """One code that is not 0: it meets its own input, and reaches its own output."""
    for _ in range(6):
        codes, x = np.zeros((32, 64), int), float32(rng, 64)
        row, column = int(rng.integers(32)), int(rng.integers(64))
        codes[row, column] = int(rng.integers(1, 16))
        ones = np.ones((32, 2), np.float32)
        wanted = np.zeros(32, np.float32)
        wanted[row] = codes[row, column] * x[column]
        expect_close(multiplied(int4_matvec, codes, ones, 0 * ones, x), wanted,
                     of=f"a matrix with the code {codes[row, column]} in row {row}, column "
                        f"{column}, and 0 elsewhere, times x", axes=OUTPUT,
                     hint="Block row // 16, lane row % 16; group column // 32, in it word "
                          "column % 32 // 8. Within a word, four inputs lie in the low halves "
                          "of its bytes, and the next four in the high halves.")


@check(INT4, points=2, public=True)
def word_by_hand(int4_matvec, rng):
    """The word 0x76543210 by hand: its bytes are 0x10, 0x32, 0x54, 0x76."""
    words = np.zeros((1, 1, 4, 16), np.uint32)
    word, lane = int(rng.integers(4)), int(rng.integers(16))
    words[0, 0, word, lane] = 0x76543210
    ones, got = np.ones((1, 1, 16), np.float32), []
    for place in range(8):
        x, y = np.zeros(32, np.float32), np.zeros(16, np.float32)
        x[8 * word + place] = 1
        int4_matvec(words, ones, 0 * ones, x, y)
        got.append(y[lane])
    expect_close(np.array(got, np.float32), np.float32([0, 2, 4, 6, 1, 3, 5, 7]),
                 of=f"the eight codes of word {word}, lane {lane}, each met by an input 1,",
                 axes=["input"],
                 hint="The low four bits of byte j are the code of input j, the high four bits "
                      "that of input j + 4.")


@check(INT4, points=2, public=True)
def minimums_alone(int4_matvec, rng):
    """Codes of 0 throughout: every weight is its group's minimum."""
    blocks, groups = 2, 3
    minimums, x = float32(rng, 16 * blocks, groups), float32(rng, 32 * groups)
    codes = np.zeros((16 * blocks, 32 * groups), int)
    scales = np.ones((16 * blocks, groups), np.float32)
    expect_close(multiplied(int4_matvec, codes, scales, minimums, x),
                 true_product(codes, scales, minimums, x), axes=OUTPUT,
                 of="a matrix whose codes are all 0, with minimums,",
                 hint="A weight is scale · code + minimum, so each input of a group is "
                      "multiplied by the minimum too: once for each input, not once for the "
                      "group.")


@check(INT4, points=2, public=True)
def whole_matrix(int4_matvec, rng):
    """Random matrices of one or several blocks and groups."""
    for blocks, groups in ((1, 1), (2, 1), (1, 3), (int(rng.integers(2, 5)), 5)):
        codes, scales, minimums = matrix(rng, blocks, groups)
        x = float32(rng, 32 * groups)
        expect_close(multiplied(int4_matvec, codes, scales, minimums, x),
                     true_product(codes, scales, minimums, x), atol=1e-4, rtol=1e-4,
                     axes=OUTPUT,
                     of=f"a matrix of {16 * blocks} rows and {32 * groups} columns times x",
                     hint="Each group has a scale and a minimum of its own in every lane, "
                          "scales[block, group, lane]; an output is the sum over its groups.")


@check(INT4, points=2, public=True)
def groups_apart(int4_matvec, rng):
    """Groups whose scales differ by a factor of a thousand."""
    codes, scales, minimums = matrix(rng, 2, 4)
    scales *= np.float32([1000, 1, 0.001, 30])
    x = float32(rng, 128)
    expect_close(multiplied(int4_matvec, codes, scales, minimums, x),
                 true_product(codes, scales, minimums, x), atol=1e-2, rtol=1e-4, axes=OUTPUT,
                 of="a matrix whose groups have scales 1000 : 1 : 0.001 : 30",
                 hint="The sum of products is scaled group by group, before it joins those of "
                      "other groups.")


@check(INT4, points=2, public=False)
def small_inputs(int4_matvec, rng):
    """Small activations among zeros lose nothing, and code 15 is no negative number."""
    codes, scales, minimums = matrix(rng, 3, 2)
    codes[rng.random(codes.shape) < 0.5] = 15
    x = np.where(rng.random(64) < 0.3, float32(rng, 64, scale=1e-3), np.float32(0))
    expect_close(multiplied(int4_matvec, codes, scales, minimums, x),
                 true_product(codes, scales, minimums, x), atol=1e-7, rtol=1e-4)


@check(INT4, points=2, public=False)
def parts_of_a_matrix(int4_matvec, rng):
    """A share of the blocks gives that share of the outputs: two threads can work at once."""
    codes, scales, minimums = matrix(rng, 5, 3)
    x = float32(rng, 96)
    words, scales_by, minimums_by = words_of(codes), by_lane(scales), by_lane(minimums)
    y = np.full(80, np.float32(5))
    cut = int(rng.integers(1, 5))
    for first, last in ((cut, 5), (0, cut)):
        int4_matvec(words[first:last], scales_by[first:last], minimums_by[first:last], x,
                    y[16 * first:16 * last])
    expect_close(y, true_product(codes, scales, minimums, x), atol=1e-4, rtol=1e-4)


@check(INT4, points=1, public=False)
def nothing_to_do(int4_matvec, rng):
    """No blocks: nothing is written."""
    y = float32(rng, 16)
    kept = y.copy()
    int4_matvec(np.zeros((0, 2, 4, 16), np.uint32), np.zeros((0, 2, 16), np.float32),
                np.zeros((0, 2, 16), np.float32), float32(rng, 64), y[:0])
    expect(np.array_equal(y, kept), "nothing to be written for no blocks", "numbers changed")
