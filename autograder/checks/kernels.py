"""Checks of the kernels: the CPU's product of a vector with a matrix of four bits, the tile
simulator of FlashAttention, and Triton's kernels."""

import tracemalloc
from collections import Counter

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (check, expect, expect_close, expect_equal, expect_returned,
                                 expect_unchanged)
from autograder.checking.differential import expect_on_all
from autograder.checking.examples import docstring_example
from autograder.checks.attention import arrays, true_attention, true_mask
from autograder.generators.arrays import VALUES, numbers, sizes
from autograder.generators.calls import Call, typed
from gearworks.kernels.flash import Partial, in_tiles, merge, tiled_bytes

# --- Numba ------------------------------------------------------------------------------------

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


example_of_cpu_int4_matvec = docstring_example(INT4, points=1)


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


@check(INT4, points=1, public=False)
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


# --- the softmax of a tile after the other ----------------------------------------------------

ONLINE = "kernels.flash.online_softmax"


def true_partial(scores: np.ndarray, values: np.ndarray) -> Partial:
    """What all keys come to at once, from the definition, in float64."""
    with np.errstate(invalid="ignore"):
        peak = scores.max(axis=-1, initial=-np.inf).astype(np.float64)
        weights = np.exp(scores - np.where(np.isneginf(peak), 0, peak)[:, None])
    return Partial(*(x.astype(np.float32) for x in (peak, weights.sum(-1), weights @ values)))


def expect_partial(got, right: Partial, hint: str, of: str = "",
                   atol: float = 1e-5) -> None:
    expect_returned(got, "a Partial")
    expect(all(hasattr(got, name) for name in ("peak", "total", "mixed")), "a Partial",
           f"{type(got).__name__}", "Return `Partial(peak, total, mixed)`.")
    for name, axes in (("peak", ["row"]), ("total", ["row"]), ("mixed", ["row", "element"])):
        expect_close(getattr(got, name), getattr(right, name), of=f"{name}{of}", axes=axes,
                     atol=atol, hint=hint)


def through(online_softmax, scores: np.ndarray, values: np.ndarray, borders) -> Partial:
    """Take the keys in tiles that end at these borders; what is given stays as it was."""
    state = Partial.nothing(len(scores), values.shape[-1])
    for start, end in zip([0, *borders], [*borders, scores.shape[1]]):
        tile, own = scores[:, start:end].copy(), values[start:end].copy()
        with (np.errstate(all="ignore"),
              expect_unchanged(state.peak, state.total, state.mixed, tile, own)):
            state = online_softmax(state, tile, own)
        expect_returned(state, "a Partial")
    return state


example_of_flash_online_softmax = docstring_example(ONLINE, points=1)


@check(ONLINE, points=1.5, public=True)
def first_tile(online_softmax, rng):
    """The first tile, by hand: of two keys, one scores log 3 above the other."""
    base = -float(rng.integers(2, 6))          # a peak below 0: no number to begin at
    scores = np.float32([[base, base + np.log(3)]])
    values = rng.integers(1, 9, (2, 3)).astype(np.float32)
    expect_partial(through(online_softmax, scores, values, []),
                   Partial(scores[:, 1], np.float32([4 / 3]), values[:1] / 3 + values[1:]),
                   "The weights are exp(score - peak): 1/3 and 1. `mixed` is not divided by "
                   "anything yet.")


@check(ONLINE, points=2, public=True)
def the_maximum_grows(online_softmax, rng):
    """A second tile whose score is log 4 higher, by hand:
    what was there counts a quarter."""
    peak, total = float(rng.integers(-3, 4)), float(rng.integers(1, 6))
    before = Partial(np.float32([peak]), np.float32([total]), arrays(rng, 1, 2))
    value = arrays(rng, 1, 2)
    with expect_unchanged(before.peak, before.total, before.mixed, value):
        got = online_softmax(before, np.float32([[peak + np.log(4)]]), value)
    expect_partial(got, Partial(np.float32([peak + np.log(4)]), np.float32([total / 4 + 1]),
                                before.mixed / 4 + value),
                   "Sum and mixture so far were made of exp(score - old peak). By what must "
                   "they be multiplied, to be of exp(score - new peak)?")


@check(ONLINE, points=2, public=True)
def any_tiles(online_softmax, rng):
    """Many rows, and keys in tiles of any width: the same as the softmax over all at once."""
    scores, values = arrays(rng, 5, 23, scale=3.0), arrays(rng, 23, 4)
    for borders in ([], [9], [4, 5, 13, 20], [*range(1, 23)]):
        expect_partial(through(online_softmax, scores, values, borders),
                       true_partial(scores, values),
                       "Is one tile right and several are not? Each row has a peak of its own. "
                       "Where it stays, nothing is scaled; where it grows, both `total` and "
                       "`mixed` are.", of=f" of 23 keys in {len(borders) + 1} tiles", atol=2e-5)


@check(ONLINE, points=2, public=True)
def masked_rows(online_softmax, rng):
    """Rows that see nothing of the first tile, of the last, or of any, beside rows that do."""
    scores, values = arrays(rng, 4, 9, scale=2.0), arrays(rng, 9, 3)
    scores[0, :3] = scores[1, 6:] = scores[2] = -np.inf
    scores[3, 1::2] = -np.inf
    hint = ("-inf - -inf is nan. A row without a visible key has the peak -inf; subtract "
            "something else from its scores, and exp(-inf) is 0.")
    got = through(online_softmax, scores, values, [3, 6])
    expect_partial(got, true_partial(scores, values), hint)
    expect_close(Partial(got.peak, got.total, got.mixed).result()[2], np.zeros(3, np.float32),
                 of="the result of a row that saw nothing", hint=hint)


@check(ONLINE, points=1, public=True)
def large_scores(online_softmax, rng):
    """Scores in the hundreds, above and below zero: nothing overflows, nothing vanishes."""
    values = arrays(rng, 12, 3)
    for shift in (-700.0, 0.0, 700.0):
        scores = np.float32(shift) + arrays(rng, 3, 12, scale=100.0)
        expect_partial(through(online_softmax, scores, values, [5]),
                       true_partial(scores, values),
                       "Subtract the peak before exp, not after; and let the peak be what the "
                       "scores are, however low.", atol=1e-4)


@check(ONLINE, points=1, public=True)
def any_tiles_of_any_scores(online_softmax, rng):
    """Scores of any size, masked ones and whole masked rows among them, in any tiles."""
    @st.composite
    def tiled(draw) -> Call:
        keys = draw(sizes(3, 1, 5))
        scores = draw(numbers(draw(sizes(2, 1)), keys, values=(*VALUES, "masked", "masked")))
        values = draw(numbers(keys, draw(sizes(2, 1)), values=("plain", "ties")))
        borders = sorted(draw(st.lists(st.integers(0, keys), max_size=3)))
        return Call((scores, values, borders))

    def demand(call: Call) -> None:
        (scores, values, borders), _ = call.made()
        got = through(online_softmax, scores, values, borders)
        expect_partial(got, true_partial(scores, values), atol=1e-4,
                       of=f" after scores, values and borders of tiles {typed(call)}",
                       hint="Take the first tile by hand, then the second. What becomes of "
                            "the old sums when the peak grows, or when there was none?")
    expect_on_all(tiled(), demand, rng)


@check(ONLINE, points=0.5, public=False)
def parts_merge(online_softmax, rng):
    """Keys in two parts, each gone through by itself, merge to the whole."""
    scores, values = arrays(rng, 6, 17, scale=4.0), arrays(rng, 17, 5)
    scores[1, :8] = scores[4, 8:] = scores[5] = -np.inf
    parts = [through(online_softmax, scores[:, keys], values[keys], [3])
             for keys in (slice(8), slice(8, 17))]
    parts = [Partial(part.peak, part.total, part.mixed) for part in parts]
    with np.errstate(all="ignore"):
        expect_partial(merge(parts), true_partial(scores, values), "", atol=2e-5)


@check(ONLINE, points=0.5, public=False)
def no_key_one_key(online_softmax, rng):
    """Tiles of no keys, of one, ties, and scores that differ in the thousandths."""
    values = arrays(rng, 8, 2, scale=1e-3)
    scores = np.float32(-3e4) + arrays(rng, 3, 8, scale=5e-2)
    scores[1] = scores[1, 0]
    expect_partial(through(online_softmax, scores, values, [0, 1, 1, 4, 8]),
                   true_partial(scores, values), "", atol=1e-5)
    expect_partial(through(online_softmax, scores[:, :0], values[:0], []),
                   Partial.nothing(3, 2), "")


@check(ONLINE, points=0.5, public=False)
def forwards_and_backwards(online_softmax, rng):
    """The law: in whatever order tiles come, they come to the same."""
    scores, values = arrays(rng, 7, 30, scale=6.0), arrays(rng, 30, 4)
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    for order in (np.arange(30), np.arange(30)[::-1], rng.permutation(30)):
        got = through(online_softmax, scores[:, order], values[order], [7, 8, 19])
        expect_close(Partial(got.peak, got.total, got.mixed).result(),
                     true_partial(scores, values).result(), atol=2e-5)


# --- attention tile by tile -------------------------------------------------------------------

TILED = "kernels.flash.flash_attention_tiled"
PLACES = ["query", "head", "element"]


def qkv(rng: np.random.Generator, T: int, S: int, H: int, K: int, d: int, e: int | None = None,
        scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k = arrays(rng, T, H, d, scale=scale), arrays(rng, S, K, d, scale=scale)
    return q, k, arrays(rng, S, K, e or d)


def expect_tiled(flash, rng: np.random.Generator, shape, tiles: tuple[int, int], hint: str, *,
                 window: int | None = None, scale: float = 1.0, atol: float = 1e-5):
    """Run it on arrays of shape T, S, H, K, d and perhaps e; returns the memory."""
    q, k, v = qkv(rng, *shape, scale=scale)
    T, S = shape[:2]
    with np.errstate(all="ignore"), expect_unchanged(q, k, v):
        out, memory = in_tiles(q, k, v, *tiles, window, flash)
    of = (f"attention of {T} quer{'y' if T == 1 else 'ies'} over {S} keys, in tiles of "
          f"{tiles[0]} and {tiles[1]}" + (f", with a window of {window}" if window else ""))
    expect_close(out, true_attention(q, k, v, true_mask(T, S, window)), of=of, axes=PLACES,
                 atol=atol, hint=hint)
    return memory


example_of_flash_flash_attention_tiled = docstring_example(TILED, points=1)


@check(TILED, points=1, public=True)
def all_in_one_tile(flash_attention_tiled, rng):
    """One head, and all queries and keys in one tile each: what `attention` gives."""
    expect_tiled(flash_attention_tiled, rng, (5, 5, 1, 1, 6), (8, 8),
                 "Read q, k and v as `q[0:5, 0]`, mask the scores, call `online_softmax` with "
                 "`Partial.nothing(...)`, and write `result()` to `out[0:5, 0]`, in the shape "
                 "of its place. How are scores scaled?")


@check(TILED, points=2, public=True)
def keys_in_tiles(flash_attention_tiled, rng):
    """One tile of queries, keys in several, of which the last is not full."""
    hint = ("The state goes through all tiles of keys, and is divided once, at the end. Which "
            "key is number 0 of a tile, and up to which one does a query see?")
    for past in (0, 7):
        expect_tiled(flash_attention_tiled, rng, (6, 6 + past, 1, 1, 5), (8, 4), hint)


@check(TILED, points=3, public=True)
def queries_in_tiles(flash_attention_tiled, rng):
    """Several tiles of both, with keys in the cache and tails that are not full."""
    hint = "Query i is token S - T + i. Each tile of queries begins with a new state."
    expect_tiled(flash_attention_tiled, rng, (11, 11, 1, 1, 4), (4, 3), hint)
    expect_tiled(flash_attention_tiled, rng, (7, 16, 2, 2, 6), (3, 5), hint)


@check(TILED, points=2, public=True)
def shared_heads(flash_attention_tiled, rng):
    """Groups of query heads share a key/value head, and values have a size of their own."""
    hint = ("`q[rows, first:end]` brings all heads of a group, (rows, H/K, d). Reshaped to "
            "(rows · H/K, d) they meet the one head of keys, and the mask says the same for "
            "each of them.")
    expect_tiled(flash_attention_tiled, rng, (5, 9, 6, 2, 4, 7), (2, 4), hint)
    expect_tiled(flash_attention_tiled, rng, (4, 4, 4, 1, 3), (3, 3), hint)


@check(TILED, points=2, public=True)
def windows(flash_attention_tiled, rng):
    """With a window, a query sees so many keys at most, its own included."""
    hint = ("Query and key are `distance` tokens apart; visible are 0 to window - 1. The first "
            "key that a tile needs is that of its first query's window.")
    for window in (1, 4, 30):
        expect_tiled(flash_attention_tiled, rng, (9, 14, 2, 1, 5), (4, 3), hint, window=window)


@check(TILED, points=3, public=True)
def bytes_moved(flash_attention_tiled, rng):
    """Every tile is read as often as the docstring says, and only what is needed."""
    for shape, tiles, window in (((12, 12, 1, 1, 4), (4, 4), None),
                                 ((10, 17, 4, 2, 6, 3), (3, 4), None),
                                 ((13, 13, 2, 2, 4), (4, 2), 5)):
        memory = expect_tiled(flash_attention_tiled, rng, shape, tiles,
                              "Get the result right first.", window=window)
        T, S, H, K, d, e = (*shape, shape[4])[:6]
        moved = Counter()
        for move in memory.moves:
            moved[f"{'written to' if move.written else 'read of'} {move.array}"] += move.nbytes
        keys = tiled_bytes(T, S, H, K, d, e, tiles[0], window) - 4 * T * H * (d + e)
        right = {"read of q": 4 * T * H * d, "read of k": keys * d // (d + e),
                 "read of v": keys * e // (d + e), "written to out": 4 * T * H * e}
        expect_equal(dict(sorted(moved.items())), dict(sorted(right.items())),
                     of=f"the bytes of {T} queries over {S} keys in tiles of {tiles[0]} and "
                        f"{tiles[1]}" + (f", with a window of {window}," if window else ""),
                     hint="Which keys may no query of a tile see? Do not read those. And what "
                          "is in fast memory need not be read again for the same tile.")


@check(TILED, points=1, public=True)
def more_queries_than_keys(flash_attention_tiled, rng):
    """The first queries come before any key: they see none, and get zeros."""
    for shape, tiles in (((7, 4, 2, 1, 4), (2, 3)), ((5, 2, 1, 1, 3), (8, 8))):
        expect_tiled(flash_attention_tiled, rng, shape, tiles,
                     "Query i is token S - T + i, which is negative here for the first ones. "
                     "`out` is to be written all the same.")


@check(TILED, points=1, public=True)
def no_large_array(flash_attention_tiled, rng):
    """600 queries in tiles of 300, 600 keys in tiles of 20: all scores would take 1.4 MB, those
    of one tile of queries 0.7 MB. Neither is ever there at once."""
    q, k, v = qkv(rng, 600, 600, 1, 1, 4)
    tracemalloc.start()
    try:
        in_tiles(q, k, v, 300, 20, None, flash_attention_tiled)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    expect(most < 650_000, "less than 0.65 MB to be in use at any time",
           f"{most / 1e6:.2f} MB", "Which of your arrays grows with the number of keys?")


@st.composite
def tilings(draw) -> tuple:
    """Queries, keys, heads and sizes of every kind, in tiles of any size, with any window."""
    T, past, kv_heads = draw(sizes(2, 1, 5)), draw(sizes(1, 0, 4)), draw(sizes(1, 2))
    shape = (T, T + past, kv_heads * draw(sizes(2, 1, 3)), kv_heads, draw(sizes(2, 1, 5)),
             draw(sizes(2, 3)))
    return (shape, (draw(sizes(2, 1, 3, 8)), draw(sizes(2, 1, 3, 8))),
            draw(st.sampled_from([None, None, 1, 3])))


@check(TILED, points=1, public=True)
def any_tiling(flash_attention_tiled, rng):
    """Queries, keys and heads of every kind, in tiles of any size, with any window."""
    seed = int(rng.integers(2**32))

    def demand(case: tuple) -> None:
        shape, tiles, window = case
        expect_tiled(flash_attention_tiled, np.random.default_rng(seed), shape, tiles,
                     f"T, S, H, K, d and e are {shape}, the tiles {tiles}, the window "
                     f"{window}. Which tile of keys is the last that the first tile of queries "
                     "needs?", window=window)
    expect_on_all(tilings(), demand, rng, 40)


@check(TILED, points=1, public=False)
def any_sizes(flash_attention_tiled, rng):
    """Tiles of one, tiles larger than everything, heads of all kinds, one query, no cache."""
    for shape, tiles in (((1, 1, 1, 1, 1), (1, 1)), ((1, 23, 6, 3, 5), (16, 4)),
                         ((8, 8, 5, 5, 7, 2), (1, 1)), ((17, 40, 7, 1, 6, 9), (5, 64)),
                         ((20, 20, 8, 2, 16), (16, 16))):
        expect_tiled(flash_attention_tiled, rng, shape, tiles, "")
    for _ in range(5):
        T, past, K, group, d = (int(n) for n in rng.integers(1, 9, 5))
        tiles = int(rng.integers(1, 7)), int(rng.integers(1, 7))
        window = None if rng.random() < 0.5 else int(rng.integers(1, 12))
        memory = expect_tiled(flash_attention_tiled, rng,
                              (T, T + past, K * group, K, d), tiles, "", window=window)
        expect_equal(memory.bytes_read + memory.bytes_written,
                     tiled_bytes(T, T + past, K * group, K, d, d, tiles[0], window))


@check(TILED, points=1, public=False)
def peaks_far_apart(flash_attention_tiled, rng):
    """Scores in the hundreds, which rise and fall from tile to tile."""
    for window in (None, 6):
        expect_tiled(flash_attention_tiled, rng, (9, 21, 2, 1, 8), (4, 3), "", window=window,
                     scale=12.0, atol=1e-3)


# --- Triton -----------------------------------------------------------------------------------

FLASH = "kernels.triton.flash_attention"


def toward(query: np.ndarray, last: np.ndarray) -> None:
    """Let the last key be one that the last query likes best, so that the maximum grows in the
    last tile, whatever was drawn. query: (H, d); last: (1, K, d), or no key at all."""
    for key in last:
        heads = query[::len(query) // len(key)]
        key[:] = 4 * heads / np.linalg.norm(heads, axis=-1, keepdims=True)


def deep(rng: np.random.Generator, T: int, S: int, shape) -> tuple[np.ndarray, ...]:
    """Queries, keys and values such that all scores are -2**33, exactly. d must be 16."""
    q, k, v = qkv(rng, T, S, *shape)
    q[:], k[:] = 0, 0
    q[..., 3], k[..., 3] = 2.0 ** 5, -2.0 ** 30
    return q, k, v


def expect_flash(flash, rng: np.random.Generator, batch, shape, hint: str, *,
                 window: int | None = None, scale: float = 1.0, atol: float = 1e-5) -> None:
    """Sequences of (queries, keys), with H, K, d, in one launch, each against the truth."""
    H, K, d = shape
    sequences = [qkv(rng, T, S, H, K, d, scale=scale) for T, S in batch]
    for q, k, _ in sequences:
        toward(q[-1], k[-1:])
    q, k, v = (np.concatenate(parts) for parts in zip(*sequences))
    given = () if len(batch) == 1 else ([T for T, _ in batch], [S for _, S in batch])
    with np.errstate(all="ignore"), expect_unchanged(q, k, v):
        got = flash(q, k, v, *given, window=window)
    expect_returned(got, f"an array of shape {q.shape}")
    expect_equal(list(np.shape(got)), list(q.shape), of="the shape of the result")
    start = 0
    for number, (one, (T, S)) in enumerate(zip(sequences, batch)):
        of = f"{T} queries over {S} keys of {d} elements" + (
            f", sequence {number} of {len(batch)}" if len(batch) > 1 else "")
        expect_close(got[start:start + T], true_attention(*one, true_mask(T, S, window)),
                     of=of + (f", with a window of {window}," if window else ","), axes=PLACES,
                     atol=atol, hint=hint)
        start += T


example_of_triton_flash_attention = docstring_example(FLASH, points=1)


@check(FLASH, points=1, public=True)
def one_program(flash_attention, rng):
    """One head, and few enough queries and keys for one tile."""
    hint = ("One part after the other: the rows that are loaded, what each query may see, "
            "the state, the store. Element e of token t is `d` numbers behind that of token "
            "t - 1, with one head; loads need a mask for what is not there.")
    expect_flash(flash_attention, rng, [(16, 16)], (1, 1, 16), hint)
    expect_flash(flash_attention, rng, [(5, 5)], (1, 1, 6), hint)


@check(FLASH, points=2, public=True)
def several_tiles(flash_attention, rng):
    """More queries and keys than a tile has room for, neither a multiple of it."""
    hint = ("Program i has the queries from i · ROWS on. Keys go up to the last one that its "
            "last query sees; tails of a tile are masked, in loads and in scores.")
    expect_flash(flash_attention, rng, [(37, 37)], (1, 1, 8), hint)
    expect_flash(flash_attention, rng, [(32, 32)], (2, 2, 16), hint)


@check(FLASH, points=1, public=True)
def every_past(flash_attention, rng):
    """However many keys are in the cache, each query sees its own, and none behind it."""
    hint = "Write down which tiles of keys the first query of a program sees as a whole."
    past = int(rng.integers(14))
    for cached in (past, 13, 14, 15, 16, 296):
        expect_flash(flash_attention, rng, [(3, 3 + cached)], (1, 1, 5), hint)


@check(FLASH, points=1, public=True)
def only_what_is_seen(flash_attention, rng):
    """Tiles of keys that no query of a program sees are not read: they hold nan here."""
    T = 64
    for window, first, hint in (
            (None, 0, "The last query of the program sees the last key that it needs."),
            (4, 48, "The first query of the program sees the first key that it needs.")):
        q, k, v = qkv(rng, T, T, 2, 1, 6)
        right = true_attention(q, k, v, true_mask(T, T, window))[first:first + 16]
        unseen = slice(32, None) if window is None else slice(0, first - window - 16)
        k[unseen], v[unseen] = np.nan, np.nan
        with np.errstate(all="ignore"):
            got = flash_attention(q, k, v, window=window, tiles=(16, 16, 4, 1))
        expect_returned(got, f"an array of shape {q.shape}")
        expect_equal(list(np.shape(got)), list(q.shape), of="the shape of the result")
        expect_close(got[first:first + 16], right, axes=PLACES, hint=hint,
                     of=f"queries {first} to {first + 15}, of {T} over {T} keys" + (
                         f", with a window of {window}" if window else ""))


@check(FLASH, points=1, public=True)
def cached_keys(flash_attention, rng):
    """There are more keys than queries: query i of a sequence is its token S - T + i."""
    hint = "Which keys does query 0 see, with 20 in the cache? And which is its own?"
    expect_flash(flash_attention, rng, [(3, 23)], (1, 1, 5), hint)
    expect_flash(flash_attention, rng, [(20, 41)], (2, 1, 12), hint)
    expect_flash(flash_attention, rng, [(1, 50)], (2, 2, 7), hint)


@check(FLASH, points=2, public=True)
def groups_of_heads(flash_attention, rng):
    """Neighbouring query heads share a key/value head."""
    hint = "Query head h has the keys of head h // (H / K): by its pointer, nothing is copied."
    expect_flash(flash_attention, rng, [(9, 18)], (6, 2, 10), hint)
    expect_flash(flash_attention, rng, [(9, 9)], (4, 1, 5), hint)


@check(FLASH, points=2, public=True)
def ragged_batch(flash_attention, rng):
    """Sequences of other lengths in one launch: each sees its own keys alone."""
    hint = ("`query_starts` and `key_starts` say where a sequence begins and ends. Its lengths "
            "are differences; where nothing is left to do for a program, it returns.")
    expect_flash(flash_attention, rng, [(18, 18), (3, 29), (1, 1), (7, 12)], (2, 1, 6), hint)


@check(FLASH, points=1, public=True)
def sliding_windows(flash_attention, rng):
    """With a window, a query sees the window's keys, its own included."""
    for window in (1, 7, 100):
        expect_flash(flash_attention, rng, [(21, 40), (5, 5)], (2, 1, 6),
                     "Visible are distances from 0 to window - 1.", window=window)


@check(FLASH, points=1, public=True)
def nothing_to_see(flash_attention, rng):
    """More queries than keys: the first ones see none, and get zeros."""
    for window in (None, 3):
        expect_flash(flash_attention, rng, [(24, 5), (6, 6)], (2, 2, 6),
                     "-inf - -inf is nan, and 0 / 0 is: what is subtracted from the scores, "
                     "and what the mixture is divided by, must be numbers.", window=window)


@check(FLASH, points=1, public=True)
def deep_scores(flash_attention, rng):
    """All scores equal, and -9e9: that gives the mean of the values. And float16 arrays."""
    q, k, v = deep(rng, 19, 40, (2, 1, 16))
    with np.errstate(all="ignore"):
        got = flash_attention(q, k, v)
    expect_close(got, true_attention(q, k, v, true_mask(19, 40)), axes=PLACES, atol=1e-5,
                 of="19 queries over 40 keys whose scores are all equal, and -9e9,",
                 hint="-inf is less than every score. What other number is?")
    q, k, v = (part.astype(np.float16) for part in qkv(rng, 19, 40, 2, 1, 16))
    with np.errstate(all="ignore"):
        got = flash_attention(q, k, v)
    expect_close(got, true_attention(*(part.astype(np.float64) for part in (q, k, v)),
                                     true_mask(19, 40)), axes=PLACES, atol=4e-3, rtol=4e-3,
                 dtype=np.float16, of="19 queries over 40 keys, all float16,",
                 hint="`tl.dot` takes two blocks of one dtype, and sums in float32. Which "
                      "dtype have the weights, and which the values?")


@check(FLASH, points=1, public=False)
def any_flash(flash_attention, rng):
    """Heads from 3 to 128 elements, large scores, odd batches."""
    for d, scale in ((3, 1.0), (17, 8.0), (64, 2.0), (96, 1.0), (128, 1.0)):
        T, past = int(rng.integers(1, 24)), int(rng.integers(0, 24))
        expect_flash(flash_attention, rng, [(T, T + past)], (2, 1, d), "", scale=scale,
                     atol=1e-3 if scale > 4 else 3e-5)
    for window in (None, 3, 16):
        batch = [(int(T), int(T + past)) for T, past in rng.integers(1, 20, (3, 2))]
        expect_flash(flash_attention, rng, batch, (4, 2, 10), "", window=window)


DECODE = "kernels.triton.paged_decode"


def expect_decode(paged_decode, rng: np.random.Generator, lengths, shape, hint: str, *,
                  size: int = 4, splits: int = 1, window: int | None = None,
                  scale: float = 1.0, atol: float = 1e-5) -> None:
    """One query for each sequence, in scattered blocks of a memory that is nan elsewhere."""
    H, K, d = shape
    needs = [-(-length // size) for length in lengths]
    blocks = rng.permutation(np.arange(1, sum(needs) + 4))
    borders = np.cumsum([0, *needs])
    tables = [blocks[start:end].tolist() for start, end in zip(borders, borders[1:])]
    keys, values = (np.full((K, sum(needs) + 4, size, d), np.nan, np.float32)
                    for _ in range(2))
    q, right = arrays(rng, len(lengths), H, d, scale=scale), []
    for row, (table, length) in enumerate(zip(tables, lengths)):
        k, v = arrays(rng, length, K, d), arrays(rng, length, K, d)
        toward(q[row], k[-1:])
        for token in range(length):
            place = table[token // size], token % size
            keys[:, place[0], place[1]], values[:, place[0], place[1]] = k[token], v[token]
        right.append(true_attention(q[row:row + 1], k, v, true_mask(1, length, window))[0])
    with np.errstate(all="ignore"), expect_unchanged(q, keys, values):
        got = paged_decode(q, keys, values, tables, list(lengths), window=window,
                           splits=splits)
    expect_returned(got, f"an array of shape {q.shape}")
    words = ", ".join(map(str, lengths))
    expect_close(got, np.array(right), axes=["sequence", "head", "element"], atol=atol,
                 hint=hint, of=f"attention over {words} tokens in blocks of {size}, in parts: "
                               f"{splits}" + (f", with a window of {window}," * bool(window)))


example_of_triton_paged_decode = docstring_example(DECODE, points=1)


@check(DECODE, points=1, public=True)
def one_sequence(paged_decode, rng):
    """One sequence, one head, all keys in one part: what `paged_attention` gives."""
    hint = ("Token i is in slot table[i // size] · size + i % size, and slot s of head h is at "
            "keys + (h · slots + s) · d. The tile's tail is masked, in loads and in scores.")
    expect_decode(paged_decode, rng, [4], (1, 1, 16), hint)
    expect_decode(paged_decode, rng, [23], (1, 1, 6), hint)


@check(DECODE, points=3, public=True)
def own_blocks(paged_decode, rng):
    """Sequences of other lengths, each in its own scattered blocks, for two heads of keys."""
    hint = ("Row `sequence` of `tables` begins at sequence · width. Which blocks are its own, "
            "and how many of the last one's places are filled?")
    expect_decode(paged_decode, rng, [9, 2, 33, 8], (2, 2, 5), hint)
    expect_decode(paged_decode, rng, [7, 40], (2, 2, 12), hint, size=16)


@check(DECODE, points=2, public=True)
def in_parts(paged_decode, rng):
    """The keys of a sequence cut among 2 to 4 programs, some of which have none."""
    hint = ("A part begins where the one before it ends. Write the sum as it is, and the "
            "mixture undivided: parts are merged afterwards. One without keys has a peak of "
            "-inf, and zeros.")
    for splits in (2, 3, 4):
        expect_decode(paged_decode, rng, [50, 3, 17], (2, 1, 6), hint, splits=splits)


@check(DECODE, points=1, public=True)
def grouped_heads(paged_decode, rng):
    """Groups of query heads that share a key/value head are one program's."""
    expect_decode(paged_decode, rng, [19, 6], (6, 2, 7),
                  "Program `head` has the query heads from head · group on. GROUP may be more "
                  "than `group`.", splits=2)


@check(DECODE, points=1, public=True)
def decode_windows(paged_decode, rng):
    """With a window, the query sees the last tokens alone, and only these are cut in parts."""
    for window in (1, 6, 90):
        expect_decode(paged_decode, rng, [31, 4], (2, 1, 6),
                      "The first token that counts is length - window, or 0.", splits=2,
                      window=window)


@check(DECODE, points=1, public=True)
def nothing_stored(paged_decode, rng):
    """A sequence without any tokens gets zeros, beside others that have some."""
    expect_decode(paged_decode, rng, [0, 5, 0], (2, 2, 4),
                  "Where a loop does not run, what is written are the values it starts with.",
                  splits=2)


@check(DECODE, points=1, public=True)
def deep_scores_in_blocks(paged_decode, rng):
    """All scores equal, and -9e9: that gives the mean of the values. And float16 arrays."""
    q, k, v = deep(rng, 1, 20, (2, 1, 16))
    tables, of = [[1, 0, 3, 2, 4]], "attention over 20 tokens whose scores are equal, and -9e9,"
    right = true_attention(q, k, v, true_mask(1, 20))
    for dtype, near in ((np.float32, 1e-5), (np.float16, 4e-3)):
        if dtype is np.float16:
            q, k, v = (part.astype(dtype) for part in qkv(rng, 1, 20, 2, 1, 16))
            right = true_attention(*(part.astype(np.float64) for part in (q, k, v)),
                                   true_mask(1, 20))
            of = "attention over 20 tokens, all float16,"
        keys, values = (part.reshape(5, 1, 4, 16).swapaxes(0, 1)[:, np.argsort(tables[0])]
                        for part in (k, v))
        with np.errstate(all="ignore"):
            got = paged_decode(q, keys, values, tables, [20], splits=2)
        expect_close(got, right, axes=["sequence", "head", "element"], atol=near, rtol=near,
                     dtype=dtype, of=of,
                     hint="-inf is less than every score; no other number is. And `tl.dot` "
                          "takes two blocks of one dtype.")


@check(DECODE, points=1, public=False)
def any_decode(paged_decode, rng):
    """Blocks of any size, heads of 3 to 128 elements, large scores."""
    for size, shape, scale in ((1, (3, 1, 3), 1.0), (5, (4, 4, 17), 9.0), (16, (8, 2, 64), 1.0),
                               (3, (2, 1, 128), 1.0)):
        lengths = [int(n) for n in rng.integers(0, 60, 3)]
        expect_decode(paged_decode, rng, lengths, shape, "", size=size, scale=scale,
                      splits=int(rng.integers(1, 5)), atol=1e-3 if scale > 4 else 3e-5)
    for window in (None, 16, 17):
        expect_decode(paged_decode, rng, [int(n) for n in rng.integers(1, 70, 3)], (4, 2, 8),
                      "", splits=3, window=window)
