"""Checks of rotary positions, the causal mask, and attention, contiguous and in blocks."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (check, expect, expect_close, expect_equal, expect_returned,
                                 expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement, expect_on_all
from autograder.checks.layers import unchanged
from autograder.checks.model import truth
from autograder.checks.scheduler import SIZES, expect_served, served_texts
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import Call, calls
from gearworks import attention as attention_module
from gearworks.attention import QUERY_BLOCK, AttentionRules, rope_angles
from gearworks.kv_cache import BlockPool
from gearworks.serving.scheduler import Scheduler

ROPE = "attention.rope_frequencies+apply_rope"
PAGED = "attention.paged_attention"
VIEWS = "Parts of x are views: what you write into them is in the caller's array."
CALLERS = "The caller's queries and keys must survive: the keys are the cache itself."


def arrays(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def true_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """From the definition, pair by pair, in float64."""
    return np.array([theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)])


def turned(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """Rotary positions in float64: each pair (i, i + d/2) is a complex number that turns."""
    half = x.shape[-1] // 2
    pairs = x[..., :half].astype(np.float64) + 1j * x[..., half:]
    pairs = pairs * np.exp(1j * positions[:, None, None] * true_frequencies(x.shape[-1], theta))
    return np.concatenate([pairs.real, pairs.imag], axis=-1).astype(np.float32)


def cos_sin(positions: np.ndarray, head_dim: int,
            theta: float) -> tuple[np.ndarray, np.ndarray]:
    """What `rope_angles` gives for the right frequencies."""
    return rope_angles(positions, true_frequencies(head_dim, theta).astype(np.float32))


example_of_rope_frequencies_apply_rope = docstring_example(ROPE, points=1)


@check(ROPE, points=1, public=True, always=(0,))
def powers_of_theta(rope_frequencies, apply_rope, rng):
    """Frequencies by hand: they fall from 1 by equal factors."""
    base = float(rng.choice([10.0, 100.0]))
    expect_close(rope_frequencies(8, base ** 4),
                 np.float32([1, 1 / base, 1 / base ** 2, 1 / base ** 3]),
                 of=f"the frequencies of a head of size 8 with theta {base ** 4:g}",
                 axes=["pair"], atol=0, rtol=1e-5,
                 hint="There are d/2 pairs. Pair i turns by theta to the power of minus 2i/d.")


@check(ROPE, points=1, public=True)
def real_frequencies(rope_frequencies, apply_rope, rng):
    """The frequencies of models as they are:
    thetas from ten thousand to a million, heads of other sizes."""
    for head_dim, theta in ((64, 1e5), (128, 1e6),
                            (int(rng.integers(3, 50)) * 2, float(rng.uniform(8e3, 6e5)))):
        expect_close(rope_frequencies(head_dim, theta),
                     true_frequencies(head_dim, theta).astype(np.float32),
                     of=f"the frequencies of a head of size {head_dim} with theta {theta:g}",
                     axes=["pair"], atol=0, rtol=1e-5,
                     hint="Are those by hand right, in the check above? Then look for a number "
                          "of one particular model: only `theta` and `head_dim` go into it.")


@check(ROPE, points=1, public=True)
def quarter_turn(rope_frequencies, apply_rope, rng):
    """A quarter turn of every pair by hand:
    the first half becomes minus the second, the second the first."""
    x = rng.permutation(np.arange(1, 7)).astype(np.float32).reshape(1, 1, 6)
    right_angle = np.zeros((1, 1, 6), np.float32), np.ones((1, 1, 6), np.float32)     # cos, sin
    expect_close(unchanged(apply_rope, x, *right_angle, hint=VIEWS),
                 np.concatenate([-x[..., 3:], x[..., :3]], axis=-1),
                 axes=["token", "head", "element"],
                 of=f"{x.ravel().tolist()}, turned by a right angle,",
                 hint="The pair (a, b) turned by an angle is (a cos - b sin, a sin + b cos). "
                      "Which two are a pair?")


@check(ROPE, points=2, public=True)
def by_position(rope_frequencies, apply_rope, rng):
    """Every head of a token is turned by the token's own position,
    and the input stays as it was."""
    positions, x = rng.choice(300, 5, replace=False), arrays(rng, 5, 3, 10)
    cos, sin = cos_sin(positions, 10, 1e4)
    got = unchanged(apply_rope, x, cos, sin, hint=VIEWS)
    expect_close(got, turned(x, positions, 1e4), axes=["token", "head", "element"],
                 hint="HF's weights pair element i with element i + d/2, and all heads of a "
                      "token turn alike.")


@check(ROPE, points=1, public=True)
def distance_alone(rope_frequencies, apply_rope, rng):
    """The law: a score depends on how far apart query and key are, not on where they stand."""
    q, k = arrays(rng, 1, 1, 12), arrays(rng, 1, 1, 12)
    far, here = int(rng.integers(20, 90)), int(rng.integers(1, 9))
    scores = []
    for shift in (0, far):
        turn = [rope_angles(np.array([shift + place]), rope_frequencies(12, 1e4))
                for place in (here, 0)]
        turned_q, turned_k = (unchanged(apply_rope, x, *angles, hint=VIEWS)
                              for x, angles in zip((q, k), turn))
        expect_returned(turned_q, "a turned query")
        expect_returned(turned_k, "a turned key")
        scores.append(np.float32(np.sum(turned_q * turned_k)))
    truth = np.float32(np.sum(turned(q, np.array([here]), 1e4) * k))
    expect_close(scores[0], truth, of=f"the score of a query at position {here} and a key at 0",
                 atol=1e-3,
                 hint="Compare `apply_rope` with a drawing of one pair, and mind both signs.")
    expect_close(scores[1], truth, of=f"the same score, both {far} positions later,", atol=1e-3,
                 hint="Turning both by the same angle more must change nothing: is each step a "
                      "rotation?")


@dataclass(frozen=True)
class Angle:
    """The cosines or sines of some positions, as `rope_angles` gives them."""

    name: str
    positions: tuple[int, ...]
    head_dim: int
    theta: float

    def made(self) -> np.ndarray:
        both = cos_sin(np.array(self.positions, int), self.head_dim, self.theta)
        return both[self.name == "sin"]

    def typed(self) -> str:
        return (f"<{self.name} of the positions {[*self.positions]}, head size "
                f"{self.head_dim}, theta {self.theta:g}>")


@st.composite
def turns(draw) -> Call:
    """Heads of any number and size at any positions, repeated ones and far ones too."""
    positions = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 5, 700]), max_size=4)))
    heads, size = draw(sizes(1, 2, 3)), draw(sizes(2, 4, 6, 128))
    theta = draw(st.sampled_from([1e4, 100.0, 5e5]))
    angles = [Angle(name, positions, size, theta) for name in ("cos", "sin")]
    return Call((draw(numbers(len(positions), heads, size)), *angles))


@check(ROPE, points=1, public=True)
def any_turn(rope_frequencies, apply_rope, rng):
    """Heads of any size at any positions, large and tiny numbers, in any layout."""
    def right_frequencies(head_dim: int, theta: float) -> np.ndarray:
        return true_frequencies(head_dim, theta).astype(np.float32)

    def right_turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        quarter = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return (x.astype(np.float64) * cos + quarter.astype(np.float64) * sin).astype(x.dtype)

    thetas = st.sampled_from([1e4, 10.0, 5e5, 1e6, 2.5])
    expect_agreement(rope_frequencies, right_frequencies,
                     calls(sizes(2, 4, 6, 64, 80, 128), thetas), rng, name="rope_frequencies",
                     atol=0.0, rtol=2e-5, hint="Pair i turns by theta to the power of -2i/d.")
    expect_agreement(apply_rope, right_turn, turns(), rng, name="apply_rope",
                     hint="Which two elements are a pair, and by which angle do they turn?")


@check(ROPE, points=1, public=False)
def odd_heads(rope_frequencies, apply_rope, rng):
    """Heads of odd shapes, positions far out, first and repeated ones, no tokens at all."""
    for T, H, d, theta in ((1, 7, 2, 1e4), (4, 1, 14, 5e5), (3, 5, 34, 1e4), (0, 2, 6, 1e4)):
        positions = rng.integers(0, 3_000, T)
        positions[1:2] = 0
        x = arrays(rng, T, H, d, scale=20.0)
        cos, sin = rope_angles(positions, rope_frequencies(d, theta))
        got = unchanged(apply_rope, x, cos, sin, hint=VIEWS)
        expect_close(got, turned(x, positions, theta), atol=2e-2)


@check(ROPE, points=1, public=False)
def small_heads(rope_frequencies, apply_rope, rng):
    """Small activations at small positions lose nothing, and lengths are kept."""
    positions, x = np.arange(6), arrays(rng, 6, 4, 18, scale=1e-3)
    got = unchanged(apply_rope, x, *cos_sin(positions, 18, 2e4), hint=VIEWS)
    expect_close(got, turned(x, positions, 2e4), atol=1e-8)
    expect_close(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), atol=1e-8)


def true_mask(T: int, S: int, window: int | None = None) -> list[list[bool]]:
    """Query t, the token at S - T + t, sees key s when it is no later, and not too far back."""
    return [[key <= S - T + query and (window is None or key > S - T + query - window)
             for key in range(S)] for query in range(T)]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def expect_mask(mask, T: int, S: int, window: int | None = None, hint: str = "") -> None:
    of = f"the mask of {_count(T, 'query', 'queries')} and {_count(S, 'key', 'keys')}"
    of += f" with a window of {window}" if window else ""
    expect_returned(mask, f"{of} to be an array of booleans")
    expect(isinstance(mask, np.ndarray) and mask.dtype == bool,
           f"{of} to be a NumPy array of booleans",
           f"{type(mask).__name__} of {getattr(mask, 'dtype', 'no dtype')}",
           "A comparison gives such an array, and so does `dtype=bool`.")
    expect_equal(mask.shape, (T, S), of=f"the shape of {of}",
                 hint="Rows are queries, columns are keys.")
    expect_equal(mask.astype(int), np.array(true_mask(T, S, window)).reshape(T, S).astype(int),
                 of=of, hint=hint)


example_of_causal_mask = docstring_example("attention.causal_mask", points=0.5)


@check("attention.causal_mask", points=1, public=True)
def corner(causal_mask, rng):
    """With keys in the cache, the triangle hangs in the lower right corner."""
    T, past = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    expect_mask(causal_mask(T, T + past), T, T + past,
                hint=f"Query 0 is token {past}. It sees {_count(past, 'key', 'keys')} of the "
                     "cache and its own.")


@check("attention.causal_mask", points=1, public=True)
def square_and_row(causal_mask, rng):
    """Without a cache it is the square of training; a single new token sees everything."""
    T = int(rng.integers(3, 7))
    expect_mask(causal_mask(T, T), T, T, hint="A token sees itself, and all before it.")
    expect_mask(causal_mask(1, T), 1, T, hint="The last token has every other one behind it.")


@check("attention.causal_mask", points=1, public=True)
def sliding_window(causal_mask, rng):
    """With a window, each query sees that many keys, its own included."""
    T, window = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    expect_mask(causal_mask(T, T + 4, window), T, T + 4, window,
                hint="A window of 2 shows a token itself and the one before. Which is the "
                     "first key that query 0 sees?")


@st.composite
def mask_sizes(draw) -> Call:
    """Any number of queries, none too, after any past, with a window or without one."""
    T, past = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    window = draw(st.one_of(st.none(), st.integers(1, 12)))
    how = draw(st.sampled_from(["", "name", "place"])) if window is None else "name"
    return Call((T, T + past, *([window] if how == "place" else [])),
                {"window": window} if how == "name" else {})


@check("attention.causal_mask", points=0.5, public=True)
def any_mask(causal_mask, rng):
    """Any number of queries after any past, with a window of any width, and without one."""
    expect_agreement(causal_mask, attention_module.causal_mask, mask_sizes(), rng, examples=120,
                     hint="Draw the mask on paper, the last row first. Which is the first key "
                          "that the first query sees, and can that be before the text?")


@check("attention.causal_mask", points=0.5, public=False)
def many_masks(causal_mask, rng):
    """Masks of all small shapes, those of no queries and of no keys among them."""
    for T in range(6):
        for S in (T, T + 1, T + int(rng.integers(2, 9))):
            expect_mask(causal_mask(T, S), T, S)


@check("attention.causal_mask", points=0.5, public=False)
def many_windows(causal_mask, rng):
    """Windows of one key, as wide as the past, and wider."""
    for T, S in ((1, 7), (4, 9), (5, 5)):
        for window in (1, 2, 4, S, S + 5):
            expect_mask(causal_mask(T, S, window), T, S, window)


def qkv(rng: np.random.Generator, T: int, S: int, H: int, K: int, d: int, scale: float = 1.0,
        v_size: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k = arrays(rng, T, H, d, scale=scale), arrays(rng, S, K, d, scale=scale)
    return q, k, arrays(rng, S, K, v_size or d)


def true_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray,
                   mask: np.ndarray | None = None) -> np.ndarray:
    """Attention from its definition, one query and one head at a time, in float64."""
    (T, H, d), (S, K, _) = q.shape, k.shape
    visible = np.array(true_mask(T, S) if mask is None else mask, bool).reshape(T, S)
    out = np.zeros((T, H, v.shape[-1]))
    for query in range(T):
        seen = visible[query]
        for head in range(H):
            if seen.any():
                shared = head // (H // K)
                scores = k[seen, shared].astype(np.float64) @ q[query, head].astype(np.float64)
                scores /= np.sqrt(d)
                powers = np.exp(scores - scores.max())
                out[query, head] = powers / powers.sum() @ v[seen, shared]
    return out.astype(np.float32)


PLACES = ["query", "head", "element"]


example_of_attention = docstring_example("attention.attention", points=1)


@check("attention.attention", points=1, public=True)
def one_head(attention, rng):
    """One head, every key visible: scores, scaled by 1/sqrt(d),
    become weights of the values."""
    q, k, v = qkv(rng, T=2, S=5, H=1, K=1, d=9)
    mask = np.ones((2, 5), bool)
    expect_close(unchanged(attention, q, k, v, mask, hint=CALLERS),
                 true_attention(q, k, v, mask), axes=PLACES,
                 hint="Query times key; softmax over the keys; weights times values. How large "
                      "is the scale?")


@check("attention.attention", points=2, public=True)
def sees_the_cached_keys(attention, rng):
    """With 5 cached keys, the first new token attends to 6 keys, the second to 7."""
    q, k, v = qkv(rng, T=3, S=8, H=2, K=2, d=6)
    expect_close(unchanged(attention, q, k, v, hint=CALLERS), true_attention(q, k, v),
                 axes=PLACES,
                 hint="Without a mask it is the causal one, and there are more keys than "
                      "queries: print it. If head 0 is right and head 1 is not, look at how "
                      "the heads change places with the tokens.")


@check("attention.attention", points=2, public=True)
def groups_of_heads(attention, rng):
    """Neighbouring query heads share a key/value head:
    of 6, heads 0 to 2 use the first, heads 3 to 5 the second."""
    q, k, v = qkv(rng, T=3, S=4, H=6, K=2, d=10)
    expect_close(unchanged(attention, q, k, v, hint=CALLERS), true_attention(q, k, v),
                 axes=PLACES,
                 hint="Repeating is [a, a, a, b, b, b], tiling is [a, b, a, b, a, b]. Which "
                      "one do HF's weights mean?")


@check("attention.attention", points=2, public=True)
def given_mask(attention, rng):
    """A given mask takes the place of the causal one,
    and a query that may see nothing gets zeros."""
    q, k, v = qkv(rng, T=4, S=6, H=4, K=2, d=8)
    mask = rng.random((4, 6)) < 0.5
    mask[0, 5], mask[2] = True, False
    with np.errstate(all="ignore"):
        got = unchanged(attention, q, k, v, mask, hint=CALLERS)
    expect_close(got, true_attention(q, k, v, mask), axes=PLACES,
                 hint="True means that the query may look. Query 2 may look at nothing.")


@check("attention.attention", points=1, public=True, always=(1,))
def large_logits(attention, rng):
    """Queries 200 times as large neither overflow nor lose the second key;
    nothing is changed in place."""
    q, k, v = qkv(rng, T=3, S=5, H=4, K=2, d=7)
    q *= np.float32(200)
    k[1] = k[0] + arrays(rng, 2, 7, scale=1e-3)
    with np.errstate(all="ignore"):
        got = unchanged(attention, q, k, v, hint=CALLERS)
    expect_close(got, true_attention(q, k, v), axes=PLACES, atol=2e-3,
                 hint="Are the checks above right? Then: where are the scores turned into "
                      "powers, and what was subtracted before?")


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see: at random, so many in ten."""

    T: int
    S: int
    tenths: int
    seed: int

    def made(self) -> np.ndarray:
        return np.random.default_rng(self.seed).random((self.T, self.S)) < self.tenths / 10

    def typed(self) -> str:
        return f"np.array({self.made().tolist()})"


@st.composite
def attended(draw) -> Call:
    """Queries, keys and values of any sizes, with a mask or without one."""
    K, T, past = draw(sizes(2, 1, 3)), draw(sizes(2, 1, 3, 0)), draw(sizes(1, 0, 4))
    H, d = K * draw(sizes(2, 1, 3)), draw(sizes(2, 3, 8, 128))
    e, S = draw(sizes(d, d + 1, 5)), T + past
    q = draw(numbers(T, H, d))
    k = draw(numbers(S, K, d, values=("plain", "ties", "tiny", "zeros")))
    v = draw(numbers(S, K, e, values=("plain", "ties", "tiny", "large")))
    mask = draw(st.one_of(st.none(), st.builds(Mask, st.just(T), st.just(S),
                                               st.sampled_from([5, 2, 8, 0]),
                                               st.integers(0, 99))))
    given = mask is not None or draw(st.booleans())
    return Call((q, k, v, mask) if given else (q, k, v))


def attention_slack(call: Call) -> float:
    """What float32 may lose of a score, and so of a weight, times the largest value."""
    (q, k, v, *_), _ = call.made()
    score = np.abs(q).max(initial=0) * np.abs(k).max(initial=0) * np.sqrt(q.shape[-1])
    return float((2e-6 + 4e-7 * score) * np.abs(v).max(initial=0) + 1e-9)


@check("attention.attention", points=1, public=True)
def any_heads(attention, rng):
    """Heads of any number and size, values of another, scores near -10,000, any mask,
    and a step without a query."""
    with np.errstate(all="ignore"):
        expect_agreement(attention, true_attention, attended(), rng, name="attention",
                         atol=attention_slack, examples=120,
                         hint="Take query 0 and head 0: which keys may it see, what are their "
                              "scores, and which size do these depend on? What is written "
                              "where it may not look must lose against every score.")


@check("attention.attention", points=0.5, public=False)
def one_new_token(attention, rng):
    """Decoding: one query, many keys, groups of heads; and the first token of all."""
    for S, H, K, d in ((1, 4, 2, 6), (23, 6, 3, 4), (40, 5, 5, 12)):
        q, k, v = qkv(rng, 1, S, H, K, d)
        expect_close(unchanged(attention, q, k, v, hint=CALLERS), true_attention(q, k, v))
        mask = rng.random((1, S)) < 0.6
        mask[0, int(rng.integers(S))] = True
        for visible in (mask, np.zeros_like(mask)):
            expect_close(unchanged(attention, q, k, v, visible, hint=CALLERS),
                         true_attention(q, k, v, visible))


@check("attention.attention", points=0.5, public=False)
def odd_shapes(attention, rng):
    """Heads of every kind: one for all, one for each, sizes that divide nothing,
    values of a size of their own."""
    for T, S, H, K, d, v_size in ((5, 5, 7, 1, 10, None), (4, 11, 6, 6, 14, None),
                                  (2, 3, 8, 2, 6, 5), (3, 3, 9, 3, 4, 13)):
        q, k, v = qkv(rng, T, S, H, K, d, v_size=v_size)
        expect_close(unchanged(attention, q, k, v, hint=CALLERS), true_attention(q, k, v))


@check("attention.attention", points=0.5, public=False, always=(3,))
def tiny_activations(attention, rng):
    """Activations in the thousandths: weights that are almost equal."""
    q, k, v = qkv(rng, T=4, S=9, H=6, K=2, d=10, scale=1e-3)
    v *= np.float32(1e-3)
    expect_close(unchanged(attention, q, k, v, hint=CALLERS), true_attention(q, k, v),
                 atol=1e-9)


@check("attention.attention", points=0.5, public=False)
def rows_that_see_nothing(attention, rng):
    """Masks with several empty rows, with one key to a row, and with nothing but empty rows."""
    q, k, v = qkv(rng, T=5, S=7, H=4, K=2, d=6, scale=30.0)
    one_each = np.zeros((5, 7), bool)
    one_each[np.arange(5), rng.integers(0, 7, 5)] = True
    one_each[[1, 3]] = False
    for mask in (one_each, np.zeros((5, 7), bool), rng.random((5, 7)) < 0.2):
        with np.errstate(all="ignore"):
            got = unchanged(attention, q, k, v, mask, hint=CALLERS)
        expect_close(got, true_attention(q, k, v, mask), atol=1e-4)


@check("attention.attention", points=1, public=False)
def ties_and_chunks(attention, rng):
    """Equal keys share their weight, and a prompt in two parts gives what it gives in one."""
    q, k, v = qkv(rng, T=7, S=7, H=6, K=3, d=8)
    k[2] = k[4] = k[1]
    whole = true_attention(q, k, v)
    expect_close(unchanged(attention, q[:3], k[:3], v[:3], hint=CALLERS), whole[:3])
    expect_close(unchanged(attention, q[3:], k, v, hint=CALLERS), whole[3:])


ALIBI = "attention.alibi_slopes"


def true_slopes(num_heads: int) -> list[float]:
    """As published: a geometric series; between powers of two, and half of the next series."""
    power = 2 ** int(np.log2(num_heads))
    if power == num_heads:
        return [2 ** (-8 * head / num_heads) for head in range(1, num_heads + 1)]
    return true_slopes(power) + true_slopes(2 * power)[::2][:num_heads - power]


def expect_slopes(alibi_slopes, num_heads: int, hint: str = "") -> None:
    expect_close(alibi_slopes(num_heads), np.float32(true_slopes(num_heads)), axes=["head"],
                 atol=0, hint=hint, of=f"the slopes of {_count(num_heads, 'head', 'heads')}")


example_of_alibi_slopes = docstring_example(ALIBI, points=0.5)


@check(ALIBI, points=1, public=True)
def eight_heads(alibi_slopes, rng):
    """Eight heads by hand: 1/2, 1/4, 1/8 and so on, down to 1/256."""
    expect_close(alibi_slopes(8), np.float32([1 / 2 ** power for power in range(1, 9)]),
                 axes=["head"], atol=0, of="the slopes of 8 heads",
                 hint="The first slope is a half, and each is half of the one before.")


@check(ALIBI, points=1, public=True)
def powers_of_two(alibi_slopes, rng):
    """Other powers of two: the first slope is also the factor from each to the next,
    and the last is 1/256."""
    for num_heads in (1, 2, 4, int(rng.choice([16, 32, 64]))):
        expect_slopes(alibi_slopes, num_heads,
                      "Is 8 right? The smallest slope is 2 to the power of -8, for any number "
                      "of heads, and the powers come in equal steps.")


@check(ALIBI, points=1, public=True)
def between_powers(alibi_slopes, rng):
    """Three heads, twelve, and another number in between:
    first all slopes of the power of two below."""
    for num_heads in (3, 12, int(rng.integers(17, 31))):
        expect_slopes(alibi_slopes, num_heads,
                      "All slopes of the power of two below; behind them those that are new in "
                      "a series twice as long: its first, its third, its fifth …")


@check(ALIBI, points=0.5, public=True)
def any_heads_of_it(alibi_slopes, rng):
    """Any number of heads."""
    expect_agreement(alibi_slopes, lambda num_heads: np.float32(true_slopes(num_heads)),
                     calls(st.integers(1, 130)), rng, name="alibi_slopes", atol=0.0,
                     hint="Which power of two is below, and which slopes come after its own?")


@check(ALIBI, points=0.5, public=False)
def large_models(alibi_slopes, rng):
    """As many heads as BLOOM, MPT and others have."""
    for num_heads in (112, 40, 71, 128):
        expect_slopes(alibi_slopes, num_heads)


@check(ALIBI, points=0.5, public=False)
def any_number(alibi_slopes, rng):
    """Every number of heads up to 20."""
    for num_heads in range(1, 21):
        expect_slopes(alibi_slopes, num_heads)


# --- keys in blocks ---------------------------------------------------------------------------


def true_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray,
                   rules: AttentionRules = AttentionRules()) -> np.ndarray:
    """One sequence's, from the definitions, in float64: query i is its token S - T + i."""
    T, H, d = q.shape
    S, K, _ = k.shape
    out = np.zeros((T, H, v.shape[-1]))
    for row, head in np.ndindex(T, H):
        own = S - T + row
        first = 0 if rules.window is None else max(0, own - rules.window + 1)
        keys, values = (x[first:own + 1, head * K // H].astype(np.float64) for x in (k, v))
        scores = keys @ q[row, head] * (d ** -0.5 if rules.scale is None else rules.scale)
        if rules.softcap is not None:
            scores = rules.softcap * np.tanh(scores / rules.softcap)
        sink = -np.inf if rules.sinks is None else float(rules.sinks[head])
        weights = np.exp(scores - max(scores.max(), sink))
        out[row, head] = weights @ values / (weights.sum()
                                             + np.exp(sink - max(scores.max(), sink)))
    return out.astype(np.float32)


def expect_paged(paged_attention, rng: np.random.Generator, batch, hint: str, *, size: int = 4,
                 shape: tuple[int, int, int, int] = (6, 2, 10, 10), order: str = "scattered",
                 rules: AttentionRules = AttentionRules(), spare: int = 0,
                 scale: float = 1.0) -> None:
    """Sequences in blocks of a memory that is full of nan elsewhere, each against the truth.

    batch: (tokens in the blocks, queries) of each sequence. shape: H, K, d, e. order: of the
    blocks. spare: how many more each table has than it needs.
    """
    H, K, d, e = shape
    needs = [-(-length // size) + spare for length, _ in batch]
    blocks = np.arange(sum(needs) + 3)
    if order == "scattered":                            # block 0 is nobody's, so that it shows
        blocks[1:] = rng.permutation(blocks[1:])
    borders = np.cumsum([order == "scattered", *needs])
    tables = [blocks[start:end].tolist() for start, end in zip(borders, borders[1:])]
    keys = np.full((K, len(blocks), size, d), np.nan, np.float32)
    values = np.full((K, len(blocks), size, e), np.nan, np.float32)
    q = arrays(rng, sum(count for _, count in batch), H, d, scale=scale)
    right, start = [], 0
    for table, (length, count) in zip(tables, batch):
        k, v = arrays(rng, length, K, d), arrays(rng, length, K, e)
        for token in range(length):
            place = table[token // size], token % size
            keys[:, place[0], place[1]], values[:, place[0], place[1]] = k[token], v[token]
        right.append(true_rows(q[start:start + count], k, v, rules))
        start += count
    lengths, counts = [length for length, _ in batch], [count for _, count in batch]
    with expect_unchanged(q, keys, values, tables, lengths, counts, rules.sinks,
                          hint="The memory belongs to all sequences."):
        got = paged_attention(q, keys, values, tables, lengths, counts, rules)
    expect_returned(got, f"an array of shape {(len(q), H, e)}")
    expect_equal(list(np.shape(got)), [len(q), H, e], of="the shape of the result")
    start = 0
    for number, (table, (length, count)) in enumerate(zip(tables, batch)):
        words = f"{count} quer{'y' if count == 1 else 'ies'} over {length} tokens"
        expect_close(got[start:start + count], right[number], axes=["query", "head", "element"],
                     atol=2e-5 * max(1.0, scale / 6), hint=hint,
                     of=f"sequence {number} of {len(batch)}, {words} in the blocks "
                        f"{', '.join(map(str, table[:8]))} of {size},")
        start += count


example_of_paged_attention = docstring_example(PAGED, points=1)


@check(PAGED, points=1.5, public=True)
def one_block(paged_attention, rng):
    """One sequence in one block, which is full: what `attention` gives."""
    expect_paged(paged_attention, rng, [(4, 4)], "Its keys are `keys[:, block]`, (K, 4, d); "
                 "`attention` takes them as (S, K, d). Is the causal mask there?")


@check(PAGED, points=1, public=True)
def by_the_table(paged_attention, rng):
    """Sequences of other lengths, one new token each: every one reads its own blocks, in the
    order of its table, and its last block as far as it is filled."""
    hint = "Token i lies in block table[i // block_size], at place i % block_size."
    expect_paged(paged_attention, rng, [(11, 1)], hint)
    expect_paged(paged_attention, rng, [(9, 1), (2, 1), (14, 1), (8, 1)], hint)
    expect_paged(paged_attention, rng, [(9, 1), (2, 1), (5, 1)], hint, order="in a row")


@check(PAGED, points=2, public=True, always=(0,))
def ragged(paged_attention, rng):
    """A prompt, a piece of a prompt after what is there already, and single tokens, in one
    step: every query sees the keys up to itself."""
    hint = ("The rows of q go by sequence: how many has this one, where do they begin, and "
            "which tokens of the sequence are they? They are its last.")
    expect_paged(paged_attention, rng, [(7, 7), (12, 5), (6, 1), (5, 2)], hint)
    expect_paged(paged_attention, rng, [(3, 1), (13, 4), (1, 1)], hint, shape=(6, 3, 4, 7))


@check(PAGED, points=1, public=True)
def nobody_elses(paged_attention, rng):
    """A table may have more blocks than are filled, a sequence no query in this step,
    and a step no rows at all."""
    hint = "`context_lens` and `query_lens` say how much is there, not the table."
    expect_paged(paged_attention, rng, [(8, 1), (5, 3), (9, 9)], hint, spare=2)
    expect_paged(paged_attention, rng, [(5, 0), (6, 2), (7, 0), (9, 1)], hint)
    expect_paged(paged_attention, rng, [(4, 0)], hint)
    expect_paged(paged_attention, rng, [], hint)


@check(PAGED, points=1, public=True)
def sliding_windows(paged_attention, rng):
    """In a layer with a window, a query sees the window's tokens, its own included."""
    for window in (1, 5):
        expect_paged(paged_attention, rng, [(13, 1), (12, 6), (3, 3), (2, 1)],
                     f"`rules.window` is {window}: `causal_mask` takes it. Which is the first "
                     "key that the last token may see?", rules=AttentionRules(window=window))


@check(PAGED, points=1, public=True)
def other_rules(paged_attention, rng):
    """Layers with a scale of their own, a soft cap, sinks: for single tokens, too."""
    hint = "`attention` knows none of these rules; the given `attention_over_views` knows all."
    for rules in (AttentionRules(scale=0.45), AttentionRules(softcap=0.9, window=4),
                  AttentionRules(sinks=arrays(rng, 6, scale=2.0))):
        expect_paged(paged_attention, rng, [(7, 1), (9, 4)], hint, rules=rules)


@st.composite
def paged_steps(draw) -> tuple[list, dict]:
    """Sequences of any length with any number of queries, and how their blocks are."""
    batch = []
    for length in draw(st.lists(st.integers(1, 9), max_size=3)):
        batch.append((length, draw(st.integers(0, length))))
    kv_heads = draw(sizes(2, 1, 3))
    shape = (kv_heads * draw(sizes(2, 1, 3)), kv_heads, draw(sizes(2, 5)), draw(sizes(2, 3)))
    window = draw(st.sampled_from([None, None, 1, 2, 4]))
    return batch, {"size": draw(sizes(2, 1, 4)), "shape": shape, "spare": draw(sizes(0, 2)),
                   "order": draw(st.sampled_from(["scattered", "in a row"])),
                   "rules": AttentionRules(window=window), "scale": draw(sizes(1, 30))}


@check(PAGED, points=1, public=True)
def any_step(paged_attention, rng):
    """Sequences of any length with any number of queries, in any blocks and windows."""
    seed = int(rng.integers(2**32))

    def demand(case: tuple[list, dict]) -> None:
        batch, options = case
        expect_paged(paged_attention, np.random.default_rng(seed), batch,
                     f"The step is {batch}, (tokens, queries) of each, with {options['shape']} "
                     f"for H, K, d, e, and a window of {options['rules'].window}.", **options)
    with np.errstate(all="ignore"):
        expect_on_all(paged_steps(), demand, rng)
    expect_paged(paged_attention, rng, [(5, 2), (3 * QUERY_BLOCK, 2 * QUERY_BLOCK + 9)],
                 "A long piece of a prompt may be computed in parts: which rows has each part, "
                 "and up to which key does its last row see?", shape=(2, 1, 4, 4), size=16)


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """The most bytes that the block has in use beyond those before it, once it has ended."""
    counted: list[int] = []
    is_ours = not tracemalloc.is_tracing()
    if is_ours:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        yield counted
        counted.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        if is_ours:
            tracemalloc.stop()


@check(PAGED, points=1, public=True)
def in_place(paged_attention, rng):
    """Keys and values are read where they lie:
    those of a long text are not copied into one array first."""
    size, d, length = 64, 256, 25_000                 # in two blocks, again and again
    keys, values = arrays(rng, 1, 2, size, d), arrays(rng, 1, 2, size, d)
    table = rng.integers(0, 2, -(-length // size)).tolist()
    k, v = (memory[0, table].reshape(-1, 1, d)[:length] for memory in (keys, values))
    for count in (1, 3):
        q = arrays(rng, count, 1, d, scale=0.1)
        right = true_rows(q, k, v, AttentionRules())
        with counted_bytes() as counted:
            got = paged_attention(q, keys, values, [table], [length], [count])
        words = f"{count} quer{'y' if count == 1 else 'ies'} over {length:,} tokens"
        expect_close(got, right, axes=["query", "head", "element"], of=f"the output of {words}",
                     hint="The checks above are about this.")
        expect(counted[0] < k.nbytes / 4,
               f"{words} to take little memory beside the blocks: the scores have "
               f"{4 * count * length / 1e6:.1f} MB, and the keys {k.nbytes / 1e6:.0f} MB",
               f"{counted[0] / 1e6:.0f} MB in use at once",
               "Index one block at a time: `keys[:, block]` is a view, and `keys[:, table]` a "
               "copy. The given `attention_over_views` takes a list of views.")


@check(PAGED, points=2, public=True)
def as_hugging_face(paged_attention, rng):
    """In an engine, with prompts in pieces, shared prefixes and preemption:
    every row's logits are Hugging Face's for that text alone."""
    for family, settings in (("Llama", {}), ("Mistral", {"sliding_window": 6})):
        case, pool = truth(family, rng, **settings), BlockPool(8, 4)
        with patch("gearworks.serving.paged_cache.paged_attention", paged_attention):
            expect_served(case, Scheduler(pool, **SIZES), pool, served_texts(rng),
                          f"A tiny {family} reads its blocks with your function here. Are the "
                          "checks above passed?")


@check(PAGED, points=0.5, public=False)
def any_batch(paged_attention, rng):
    """Batches of every kind: long prompts, blocks of one token, heads of odd shapes, large
    scores."""
    for shape, size, batch in (((4, 4, 6, 6), 1, [(5, 1), (3, 3)]),
                               ((5, 1, 3, 8), 3, [(20, 1), (31, 2), (1, 1), (6, 0)]),
                               ((8, 2, 16, 16), 16, [(QUERY_BLOCK + 40, QUERY_BLOCK + 9),
                                                     (33, 1)])):
        for scale, window in ((1.0, None), (60.0, None), (1.0, 7)):
            expect_paged(paged_attention, rng, batch, "", shape=shape, size=size, scale=scale,
                         rules=AttentionRules(window=window))
    for _ in range(6):
        lengths = rng.integers(1, 24, int(rng.integers(1, 6)))
        batch = [(int(length), int(rng.choice([1, rng.integers(0, length + 1)])))
                 for length in lengths]
        expect_paged(paged_attention, rng, batch, "", size=int(rng.integers(1, 9)),
                     order=str(rng.choice(["scattered", "in a row"])),
                     spare=int(rng.integers(3)))
