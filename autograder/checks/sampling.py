"""Checks of processors and sampling, against definitions, Hugging Face, and chi-squared."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (check, expect, expect_close, expect_equal, expect_error,
                                 expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement, expect_on_all
from autograder.generators.arrays import VALUES, Numbers, rows, sizes
from autograder.generators.calls import Call, calls, typed
from autograder.generators.seeds import Generator, generators
from gearworks import sampling
from gearworks.errors import ModelError
from gearworks.sampling import TokenLogprob

IMPOSSIBLE = np.float32(-np.inf)
NOTHING_POSSIBLE = np.full((2, 7), IMPOSSIBLE)
UNCHANGED = "Others still need these logits: work on a copy, or build a new array."


def random_logits(rng: np.random.Generator, *shape: int, scale: float = 2.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def signs_in_turn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random logits: those of even tokens are positive, those of odd ones negative."""
    return np.abs(random_logits(rng, *shape)) * np.float32(1 - 2 * (np.arange(shape[-1]) % 2))


def logits_of(probabilities: Sequence[float]) -> np.ndarray:
    """Logits that have these probabilities; 0 makes a token impossible."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, np.float64)).astype(np.float32)


def true_softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


def apart(values: Sequence[float], rng: np.random.Generator) -> float:
    """A number between two neighbours that differ clearly, so that rounding decides nothing."""
    ordered = np.sort(np.asarray(values, np.float64))
    gaps = np.flatnonzero(np.diff(ordered) > 1e-3)
    place = int(rng.choice(gaps))
    return float((ordered[place] + ordered[place + 1]) / 2)


def expect_processed(function: Callable, logits: np.ndarray, arguments: Sequence,
                     right: np.ndarray, of: str, hint: str, atol: float = 1e-5) -> None:
    """A processor must give the right logits, and leave the given ones as they were."""
    with expect_unchanged(logits, *arguments, hint=UNCHANGED), np.errstate(all="ignore"):
        got = function(logits, *arguments)
    axes = ["sequence", "token"] if logits.ndim == 2 else ["token"]
    expect_close(got, right, of=of, axes=axes, atol=atol, hint=hint)


def by_hugging_face(processor, logits: np.ndarray, ids: Sequence[int] = ()) -> np.ndarray:
    """What a processor of Hugging Face makes of logits (V,)."""
    import torch

    return processor(torch.tensor([ids], dtype=torch.long),
                     torch.from_numpy(logits.copy())[None])[0].numpy()


def kinds_of_logits(rng: np.random.Generator, V: int) -> list[np.ndarray]:
    """Normal, tiny, large and mostly impossible logits."""
    logits = random_logits(rng, V)
    return [logits, logits * np.float32(1e-3), logits * np.float32(200),
            np.where(rng.permutation(V) < V // 4, logits, IMPOSSIBLE)]


# --- temperature, logit_bias

WARMTH = "sampling.temperature+logit_bias"


example_of_temperature_logit_bias = docstring_example(WARMTH, points=0.5)


@check(WARMTH, points=0.5, public=True)
def sharper_and_flatter(temperature, logit_bias, rng):
    """Below 1 the differences grow, above 1 they shrink; the input stays as it was."""
    for value in (0.5, 4.0, float(rng.uniform(0.2, 0.9))):
        logits = random_logits(rng, 7)
        expect_processed(temperature, logits, [value], logits / np.float32(value),
                         f"the logits at temperature {value:.2g}",
                         "A cold model is sure of itself: its best token is farther ahead of "
                         "the others.")


@check(WARMTH, points=1, public=True)
def added_to_some(temperature, logit_bias, rng):
    """A bias is added to the tokens it names, for one sequence and for several."""
    for shape in ((6,), (3, 6)):
        logits = random_logits(rng, *shape)
        right = logits.copy()
        right[..., 5] += np.float32(-3.5)
        right[..., 0] += np.float32(2)
        expect_processed(logit_bias, logits, [{5: -3.5, 0: 2.0}], right,
                         f"the logits {shape} with -3.5 for token 5, 2 for 0",
                         "The last axis counts the tokens. All other tokens keep their logits.")


@check(WARMTH, points=1, public=True)
def no_such_token(temperature, logit_bias, rng):
    """A bias for an id outside of the vocabulary is refused,
    and one for the last token is not."""
    logits = random_logits(rng, 6)
    right = logits + np.float32([0, 0, 0, 0, 0, 1.5])
    expect_processed(logit_bias, logits, [{5: 1.5}], right,
                     "the logits with a bias of 1.5 for the last token", "")
    for wrong in (6, 60, -1):
        with expect_error(ModelError, when=f"token {wrong} of 6 is to have a bias",
                          hint="NumPy reads -1 as the last one, and nobody notices. Ask before "
                               "you index."):
            logit_bias(logits, {1: 0.5, wrong: 2.0})


ROWS = rows(widths=(3, 1, 2, 4, 8), axes=(1, 2), values=(*VALUES, "masked"))


def expect_like(function, right: Callable, cases: st.SearchStrategy, rng, hint: str,
                **options) -> None:
    """A processor must give the right logits for whatever is drawn."""
    with np.errstate(all="ignore"):
        expect_agreement(function, right, cases, rng, hint=hint, **{"atol": 1e-6} | options)


@check(WARMTH, points=1, public=True)
def any_warmth(temperature, logit_bias, rng):
    """Any logits, of one sequence or several, at any temperature, with any biases."""
    expect_like(temperature, sampling.temperature,
                calls(ROWS, st.sampled_from([0.5, 1.0, 1e-3, 60.0, 2.0])), rng,
                "Every logit by itself.")
    bias = st.dictionaries(st.sampled_from([0, 1, 2, 3, -1, 8]),
                           st.sampled_from([2.0, -3.5, 0.0, -math.inf, 100.0]), max_size=3)
    expect_like(logit_bias, sampling.logit_bias, calls(ROWS, bias), rng,
                "Is there such a token? Which logits of which rows change?")


@check(WARMTH, points=0.5, public=False)
def logits_of_every_kind(temperature, logit_bias, rng):
    """Large, tiny and impossible logits, one sequence and several, cold and hot."""
    for logits in [*kinds_of_logits(rng, 40), random_logits(rng, 3, 11, scale=200)]:
        for value in (1e-3, 0.7, 1.0, 60.0):
            expect_processed(temperature, logits, [value], logits / np.float32(value),
                             "the logits", "", atol=0)


@check(WARMTH, points=0.5, public=False)
def biases_of_every_kind(temperature, logit_bias, rng):
    """No bias at all, biases that forbid, many of them, on large and on impossible logits."""
    for logits in [*kinds_of_logits(rng, 30), random_logits(rng, 2, 30)]:
        for bias in ({}, {0: -math.inf}, {29: 100.0, 3: -100.0},
                     {int(id): float(rng.normal()) for id in rng.permutation(30)[:12]}):
            right = logits.copy()
            for id, number in bias.items():
                right[..., id] += np.float32(number)
            expect_processed(logit_bias, logits, [bias], right, "the logits", "", atol=1e-6)


# --- top_k


def true_top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Row by row: as many as k, and those tied with the last of them."""
    rows = [[value if sum(other > value for other in row) < k else -math.inf for value in row]
            for row in np.atleast_2d(logits).tolist()]
    return np.array(rows, np.float32).reshape(logits.shape)


example_of_top_k = docstring_example("sampling.top_k", points=0.5)


@check("sampling.top_k", points=0.5, public=True)
def the_best_stay(top_k, rng):
    """The k best tokens keep their logits;
    the others are ruled out with -inf, and the input stays as it was."""
    logits = random_logits(rng, 9)
    for k in (1, 3, 8):
        expect_processed(top_k, logits, [k], true_top_k(logits, k),
                         f"the logits of 9 tokens after top-k with k={k}",
                         "How large is the k-th largest logit? Whatever is below it goes.")


@check("sampling.top_k", points=1, public=True)
def ties_stay(top_k, rng):
    """Tokens tied with the k-th stay, all of them."""
    logits = rng.permutation(np.float32([4, 2, 2, 2, 1, -3]))
    for k in (2, 3, 4):
        expect_processed(top_k, logits, [k], true_top_k(logits, k),
                         f"{logits.tolist()} after top-k with k={k}",
                         "Three tokens are equally likely. Nothing here says which of them is "
                         "better.")


@check("sampling.top_k", points=1, public=True)
def more_than_there_are(top_k, rng):
    """With k as large as the vocabulary, or larger, every token stays."""
    logits = random_logits(rng, 5)
    for k in (5, 6, 1000):
        expect_processed(top_k, logits, [k], logits,
                         f"the logits of 5 tokens after top-k with k={k}",
                         "40 is a usual k, and a grammar may leave fewer tokens than that.")


@check("sampling.top_k", points=1, public=True)
def each_row_alone(top_k, rng):
    """Several sequences: each has its own k best tokens."""
    logits = random_logits(rng, 3, 8) + np.float32([[0], [30], [-30]])
    expect_processed(top_k, logits, [2], true_top_k(logits, 2),
                     "the logits (3, 8) after top-k with k=2",
                     "Each row has a threshold of its own: keep the axis, so that it stands "
                     "beside its row.")


@check("sampling.top_k", points=1, public=True)
def any_k(top_k, rng):
    """Any logits, with ties, one sequence or several, and any k."""
    expect_like(top_k, true_top_k, calls(ROWS, st.sampled_from([1, 2, 3, 4, 8, 1000])), rng,
                "Sort the row on paper. Which logit is the k-th, and which equal it?",
                name="top_k")


@check("sampling.top_k", points=0.5, public=False, always=(0,))
def top_k_of_every_kind(top_k, rng):
    """Large, tiny and mostly impossible logits, ties everywhere."""
    for logits in [*kinds_of_logits(rng, 32), np.zeros(6, np.float32),
                   rng.integers(-2, 2, (3, 14)).astype(np.float32), NOTHING_POSSIBLE]:
        for k in (1, 7, 12, 40):
            expect_processed(top_k, logits, [k], true_top_k(logits, k), "the logits", "",
                             atol=0)


@check("sampling.top_k", points=0.5, public=False)
def top_k_like_hugging_face(top_k, rng):
    """As Hugging Face's TopKLogitsWarper on a large vocabulary."""
    from transformers.generation.logits_process import TopKLogitsWarper

    for logits in kinds_of_logits(rng, 2003):
        for k in (1, 40, 2003):
            expect_processed(top_k, logits, [k], by_hugging_face(TopKLogitsWarper(k), logits),
                             "the logits", "", atol=1e-6)


# --- top_p


def nucleus_order(row: np.ndarray) -> list[int]:
    """The tokens from the likeliest on; of equal ones the higher id comes first."""
    return sorted(range(len(row)), key=lambda id: (-row[id], -id))


def true_top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Row by row: the likeliest tokens until their probabilities reach p together."""
    out = np.full(np.atleast_2d(logits).shape, IMPOSSIBLE)
    for row, right in zip(np.atleast_2d(logits), out):
        probabilities, reached = true_softmax(row), 0.0
        for id in nucleus_order(row):
            right[id] = row[id]
            reached += probabilities[id]
            if reached >= p - 1e-12:
                break
    return out.reshape(logits.shape)


def border_between(logits: np.ndarray, rng: np.random.Generator) -> float:
    """A p that lies clearly between two of the sums that top-p compares it with."""
    sums = np.cumsum(true_softmax(logits)[nucleus_order(logits)])
    return apart([0, *sums], rng)


example_of_top_p = docstring_example("sampling.top_p", points=0.5)


@check("sampling.top_p", points=1, public=True)
def the_one_that_crosses(top_p, rng):
    """Tokens stay until their probabilities reach p together;
    the token that crosses p is one of them."""
    probabilities = rng.permutation([0.4, 0.3, 0.2, 0.1])
    logits = logits_of(probabilities)
    for p, kept in ((0.5, 2), (0.35, 1), (0.8, 3)):
        expect_processed(top_p, logits, [p], true_top_p(logits, p),
                         f"the logits of the probabilities {probabilities.tolist()} after "
                         f"top-p with p={p}",
                         f"The likeliest {kept} are needed to reach {p}. Which sums do you "
                         "compare, and which of them is the first that is enough?")


@check("sampling.top_p", points=1, public=True)
def at_least_one(top_p, rng):
    """However small p is, the likeliest token stays; with p = 1 all tokens do."""
    logits, flat = random_logits(rng, 6, scale=1.0), np.full(6, np.float32(rng.normal()))
    for name, row in (("the logits", logits), ("six equal logits", flat),
                      ("the logit of an only token", logits[:1])):
        for p in (1e-3, 1e-9):
            expect_processed(top_p, row, [p], true_top_p(row, p),
                             f"{name} after top-p with p={p:g}",
                             "Something must be left to draw from.")
    for row in (logits, flat, logits[:1], np.where(logits == logits.max(), IMPOSSIBLE, logits)):
        expect_processed(top_p, row, [1.0], row, "the logits after top-p with p=1",
                         "Every possible token is needed to reach 1.")


@check("sampling.top_p", points=1, public=True)
def a_large_vocabulary(top_p, rng):
    """Sums over 150,000 tokens are still right, to a few tokens."""
    V = 150_000
    flat, steep = np.zeros(V, np.float32), random_logits(rng, V, scale=3.0)
    for name, logits, p in (("equal logits", flat, 0.1), ("equal logits", flat, 0.9),
                            ("logits", steep, 0.999)):
        right = int((np.cumsum(np.sort(true_softmax(logits))[::-1]) < p).sum()) + 1
        with np.errstate(all="ignore"):
            got = top_p(logits, p)
        expect_returned(got, f"a NumPy array of shape {logits.shape}")
        expect(np.shape(got) == logits.shape, f"an array of shape {logits.shape}",
               f"the shape {np.shape(got)}")
        kept = int(np.isfinite(got).sum())
        expect(abs(kept - right) <= 25,
               f"{right:,} of {V:,} {name} to be left by top-p with p={p}, give or take a few",
               f"{kept:,}",
               "A float32 has 24 bits. How much of a 150,000th do they still hold when it is "
               "added to a sum of 0.5?")


@check("sampling.top_p", points=1, public=True)
def in_their_places(top_p, rng):
    """Tokens in any order, one sequence and several: what is kept stands where it stood."""
    for shape in ((12,), (3, 12)):
        logits = random_logits(rng, *shape)
        p = 0.7 if logits.ndim == 2 else border_between(logits, rng)
        expect_processed(top_p, logits, [p], true_top_p(logits, p),
                         f"the logits {shape} after top-p with p={p:.3f}",
                         "Sorting has moved the tokens. Each row is a distribution of its own.")


@check("sampling.top_p", points=1, public=True)
def ties_at_the_border(top_p, rng):
    """Of tokens tied at the border only as many stay as are needed:
    those with the higher ids."""
    probabilities = [0.2, 0.2, 0.4, 0.2]
    logits = logits_of(probabilities)
    for p in (0.5, 0.7, 0.3):
        expect_processed(top_p, logits, [p], true_top_p(logits, p),
                         f"the logits of the probabilities {probabilities} after top-p with "
                         f"p={p}",
                         "The smallest set that reaches p. A stable ascending sort leaves "
                         "equal tokens in the order of ids.")


@st.composite
def with_border(draw, sums: Callable[[np.ndarray], Sequence[float]],
                all_of: bool = False) -> Call:
    """Logits, and a p that lies clearly between two of the sums that decide; or a p that is a
    sum, where sums are exact: 2, 4 or 8 equal logits. all_of: p may also be 1, where no token
    is so unlikely that float32 could lose it."""
    if draw(st.sampled_from([False, False, True])):
        equal = Numbers((draw(sizes(4, 2, 8)),), values="zeros")
        return Call((equal, draw(st.sampled_from([0.5, 0.25, 0.75, 1e-6]))))
    logits = draw(rows(widths=(3, 1, 2, 4, 8, 40), axes=(1,),
                       values=("plain", "ties", "tiny", "masked", "low")))
    row = logits.made()
    if not np.isfinite(row).any():
        return Call((logits, 0.5))
    if all_of and true_softmax(row)[np.isfinite(row)].min() > 1e-3 and draw(st.booleans()):
        return Call((logits, 1.0))
    border = draw(between([0, *sums(row)]))
    return Call((logits, 1e-6 if border is None else border))


@st.composite
def between(draw, values: Sequence[float]) -> float | None:
    """A number between two neighbours among these, most often of those that lie closest;
    None where all are too close for float32."""
    ordered = np.unique(np.asarray(values, np.float64))
    widths = np.diff(ordered)
    gaps = [at for at in np.argsort(widths, kind="stable") if widths[at] > 4e-5]
    if not gaps:
        return None
    at = gaps[draw(st.integers(0, len(gaps) - 1))]
    return round(float(ordered[at] + ordered[at + 1]) / 2, 7)


def sums_of_top_p(row: np.ndarray) -> np.ndarray:
    return np.cumsum(true_softmax(row)[nucleus_order(row)])


def nucleus(logits: np.ndarray, p: float) -> np.ndarray:
    """What is right, of a row without any possibility too."""
    return true_top_p(logits, p) if np.isfinite(logits).any() else logits


@check("sampling.top_p", points=1, public=True)
def any_border(top_p, rng):
    """Any logits, with ties, with a p that is just reached, and with one that is not."""
    expect_like(top_p, nucleus, with_border(sums_of_top_p), rng,
                "Write down the probabilities, the likeliest first, and add them up. Which "
                "one reaches p?", name="top_p", examples=120)


@check("sampling.top_p", points=0.5, public=False)
def top_p_of_every_kind(top_p, rng):
    """Large, tiny and mostly impossible logits; one possible token."""
    alone = np.full(9, IMPOSSIBLE)
    alone[int(rng.integers(9))] = 3
    for logits in (*kinds_of_logits(rng, 32), alone):
        for p in (0.3, 0.9, 1e-6) if logits is alone else (border_between(logits, rng), 1e-6):
            expect_processed(top_p, logits, [p], true_top_p(logits, p), "the logits", "",
                             atol=0)
    expect_processed(top_p, NOTHING_POSSIBLE, [0.9], NOTHING_POSSIBLE, "the logits", "")


@check("sampling.top_p", points=0.5, public=False)
def top_p_with_ties(top_p, rng):
    """Ties everywhere: of those at the border as many stay as are needed,
    and they have the highest ids."""
    for V, values in ((7, 3), (11, 3), (11, 2), (96, 2), (96, 2), (96, 3)):
        logits = np.log(rng.integers(1, 1 + values, V).astype(np.float32))
        p = border_between(logits, rng)
        expect_processed(top_p, logits, [p], true_top_p(logits, p), "the logits", "", atol=0)


@check("sampling.top_p", points=0.5, public=False)
def top_p_like_hugging_face(top_p, rng):
    """As Hugging Face's TopPLogitsWarper on a large vocabulary."""
    from transformers.generation.logits_process import TopPLogitsWarper

    for scale in (1.0, 3.0):
        logits = random_logits(rng, 701, scale=scale)
        for low in (0.1, 0.6, 0.9):
            sums = np.cumsum(true_softmax(logits)[nucleus_order(logits)])
            place = int(np.searchsorted(sums, low))
            p = float(sums[place] + sums[place + 1]) / 2
            expect_processed(top_p, logits, [p], by_hugging_face(TopPLogitsWarper(p), logits),
                             "the logits", "", atol=1e-6)


# --- min_p


def true_min_p(logits: np.ndarray, p: float) -> np.ndarray:
    rows = [np.where(true_softmax(row) < p * true_softmax(row).max(), IMPOSSIBLE, row)
            for row in np.atleast_2d(logits)]
    return np.array(rows).reshape(logits.shape)


example_of_min_p = docstring_example("sampling.min_p", points=0.5)


@check("sampling.min_p", points=0.5, public=True)
def measured_by_the_likeliest(min_p, rng):
    """A token stays when it is at least p times as likely as the likeliest one."""
    probabilities = rng.permutation([0.45, 0.3, 0.15, 0.1])
    logits = logits_of(probabilities)
    for p in (0.5, 0.25, 0.9):
        expect_processed(min_p, logits, [p], true_min_p(logits, p),
                         f"the logits of the probabilities {probabilities.tolist()} after "
                         f"min-p with p={p}",
                         "The likeliest has 0.45. How likely must a token be to stay?")


@check("sampling.min_p", points=1, public=True)
def nothing_and_all(min_p, rng):
    """p = 0 keeps every token, p = 1 the likeliest and those tied with it."""
    logits = rng.permutation(np.float32([3, 3, 2, 0.5, -4]))
    expect_processed(min_p, logits, [0.0], logits, f"{logits.tolist()} after min-p with p=0",
                     "Nothing is less likely than 0.")
    expect_processed(min_p, logits, [1.0], np.where(logits == 3, logits, IMPOSSIBLE),
                     f"{logits.tolist()} after min-p with p=1",
                     "Two tokens are the likeliest; none of them is less likely than the "
                     "other.")


@check("sampling.min_p", points=1, public=True)
def each_sequence_alone(min_p, rng):
    """Several sequences: each is measured by its own likeliest token, sure of itself or not."""
    logits = random_logits(rng, 3, 9, scale=1.0) * np.float32([[0.3], [1], [6]])
    expect_processed(min_p, logits, [0.2], true_min_p(logits, 0.2),
                     "the logits (3, 9) after min-p with p=0.2",
                     "It is probabilities that are compared, row by row.")


@check("sampling.min_p", points=1, public=True)
def any_share(min_p, rng):
    """Any logits, with ties, and any p that lies between two shares of the likeliest."""
    def shares(row: np.ndarray) -> np.ndarray:
        return true_softmax(row) / true_softmax(row).max()

    def right(logits: np.ndarray, p: float) -> np.ndarray:
        return true_min_p(logits, p) if np.isfinite(logits).any() else logits

    expect_like(min_p, right, with_border(shares), rng,
                "How likely is the likeliest, and what is p times that?", name="min_p",
                examples=100)
    expect_like(min_p, right, calls(rows(widths=(3, 5), axes=(1,), values=("plain", "ties")),
                                    st.sampled_from([0.0, 1.0])), rng,
                "0 keeps everything, 1 the likeliest and its equals.", name="min_p",
                examples=20)


@check("sampling.min_p", points=0.5, public=False, always=(0,))
def min_p_of_every_kind(min_p, rng):
    """Large, tiny and mostly impossible logits."""
    for logits in kinds_of_logits(rng, 32):
        shares = true_softmax(logits) / true_softmax(logits).max()
        for p in (1e-4 if shares.min() > 1e-3 else apart([0, *shares], rng), 0.0):
            expect_processed(min_p, logits, [p], true_min_p(logits, p), "the logits", "",
                             atol=0)
    expect_processed(min_p, NOTHING_POSSIBLE, [0.1], NOTHING_POSSIBLE, "the logits", "")


@check("sampling.min_p", points=0.5, public=False)
def min_p_like_hugging_face(min_p, rng):
    """As Hugging Face's MinPLogitsWarper on a large vocabulary."""
    from transformers.generation.logits_process import MinPLogitsWarper

    for scale in (0.4, 2.0, 40.0):
        logits = random_logits(rng, 907, scale=scale)
        shares = np.sort(true_softmax(logits) / true_softmax(logits).max())
        for p in (float(shares[-9] + shares[-8]) / 2, float(shares[-2] + 1) / 2):
            right = by_hugging_face(MinPLogitsWarper(p), logits)
            expect_processed(min_p, logits, [p], right, "the logits", "", atol=1e-6)


# --- repetition_penalty

EACH_ITS_OWN = ("Each row is a sequence of its own, and has as its own text the list of ids in "
                "the same place.")


def true_repetition(logits: np.ndarray, penalty: float, ids: Sequence[int]) -> np.ndarray:
    right = logits.tolist()
    for id in set(ids):
        right[id] = right[id] / penalty if right[id] > 0 else right[id] * penalty
    return np.float32(right)


example_of_repetition_penalty = docstring_example("sampling.repetition_penalty", points=0.5)


@check("sampling.repetition_penalty", points=0.5, public=True)
def both_signs(repetition_penalty, rng):
    """A token that occurred becomes less likely, whether its logit is positive or negative."""
    logits = rng.permutation(np.float32([3, -3, 1, -1, 2, -2]))
    for penalty in (1.5, 2.0):
        expect_processed(repetition_penalty, logits, [penalty, [0, 1, 2, 3]],
                         true_repetition(logits, penalty, [0, 1, 2, 3]),
                         f"{logits.tolist()} after a penalty of {penalty} for tokens 0 to 3",
                         "Is every punished logit smaller than it was? What does a division do "
                         "to -3?")


@check("sampling.repetition_penalty", points=1, public=True)
def once_is_enough(repetition_penalty, rng):
    """A token that occurred many times is punished once;
    the others, and the input, stay as they were."""
    logits, ids = signs_in_turn(rng, 8), [2, 5, 2, 2, 0, 5]
    expect_processed(repetition_penalty, logits, [1.3, ids], true_repetition(logits, 1.3, ids),
                     f"the logits after a penalty of 1.3 for the text {ids}",
                     "It counts whether a token occurred, not how often.")


@check("sampling.repetition_penalty", points=1, public=True)
def rewards_and_nothing(repetition_penalty, rng):
    """A penalty below 1 makes tokens likelier;
    one of 1 changes nothing, and an empty text changes nothing."""
    logits, ids = signs_in_turn(rng, 6), rng.permutation([0, 3, 4]).tolist()
    expect_processed(repetition_penalty, logits, [0.6, ids], true_repetition(logits, 0.6, ids),
                     "the logits after a penalty of 0.6", "The rule is the same below 1.")
    expect_processed(repetition_penalty, logits, [1.0, ids], logits,
                     "the logits after a penalty of 1", "")
    expect_processed(repetition_penalty, logits, [1.3, []], logits,
                     "the logits after a penalty of 1.3 for an empty text",
                     "An empty list makes an array of float64, which is no index.")


@check("sampling.repetition_penalty", points=1, public=True)
def a_text_for_each_row(repetition_penalty, rng):
    """Of several sequences each is punished for its own tokens, however many these are."""
    logits, (a, b, c) = signs_in_turn(rng, 3, 6), rng.permutation([0, 3, 4]).tolist()
    for ids in ([[a, b], [b, c], [a, a]], [[c, a, a, b], [], [b]]):
        right = np.stack([true_repetition(row, 1.4, seen) for row, seen in zip(logits, ids)])
        expect_processed(repetition_penalty, logits, [1.4, ids], right,
                         f"the logits (3, 6) after a penalty of 1.4 for the texts {ids}",
                         EACH_ITS_OWN)


def rows_with_texts(kinds: Sequence[str]) -> st.SearchStrategy[tuple]:
    """Logits of one sequence or several, and what was generated, of each."""
    def with_ids(logits: Numbers) -> st.SearchStrategy[tuple]:
        text = st.lists(st.integers(0, logits.shape[-1] - 1), max_size=5)
        many = [text] * logits.shape[0]
        return st.tuples(st.just(logits), text if len(logits.shape) == 1
                         else st.tuples(*many).map(list))
    return rows(widths=(3, 1, 5), axes=(1, 2), values=kinds).flatmap(with_ids)


@check("sampling.repetition_penalty", points=1, public=True)
def any_text(repetition_penalty, rng):
    """Any logits, of one sequence or several, any penalty, and texts that repeat themselves."""
    cases = st.builds(lambda drawn, penalty: Call((drawn[0], penalty, drawn[1])),
                      rows_with_texts((*VALUES, "masked")),
                      st.sampled_from([2.0, 0.5, 1.0, 1.3]))
    expect_like(repetition_penalty, sampling.repetition_penalty, cases, rng,
                "Which tokens occurred, and which sign have their logits?",
                atol=None)


@check("sampling.repetition_penalty", points=0.5, public=False)
def texts_of_every_kind(repetition_penalty, rng):
    """Large, tiny and impossible logits, logits of zero, long texts."""
    for logits in [*kinds_of_logits(rng, 90), np.zeros(90, np.float32)]:
        ids = [*rng.permutation(90)[:3].tolist(), *rng.integers(0, 12, 200).tolist()]
        for penalty in (1.1, 5.0):
            expect_processed(repetition_penalty, logits, [penalty, ids],
                             true_repetition(logits, penalty, ids), "the logits", "", atol=1e-8)


@check("sampling.repetition_penalty", points=0.5, public=False)
def repetition_like_hugging_face(repetition_penalty, rng):
    """As Hugging Face's RepetitionPenaltyLogitsProcessor on a large vocabulary."""
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    for logits in kinds_of_logits(rng, 1201):
        ids = [0, *rng.integers(1, 1201, 300).tolist()]
        right = by_hugging_face(RepetitionPenaltyLogitsProcessor(1.7), logits, ids)
        expect_processed(repetition_penalty, logits, [1.7, ids], right, "the logits", "",
                         atol=1e-6)


# --- presence_frequency


def true_presence_frequency(logits: np.ndarray, presence: float, frequency: float,
                            generated: Sequence[int]) -> np.ndarray:
    return np.float32([score - (presence if id in generated else 0)
                       - frequency * list(generated).count(id)
                       for id, score in enumerate(logits.tolist())])


example_of_presence_frequency = docstring_example("sampling.presence_frequency", points=0.5)


@check("sampling.presence_frequency", points=0.5, public=True)
def there_at_all(presence_frequency, rng):
    """The presence penalty is subtracted once from each token that was generated."""
    logits = random_logits(rng, 6)
    generated = [3, 1, 3, 3]
    expect_processed(presence_frequency, logits, [0.75, 0.0, generated],
                     true_presence_frequency(logits, 0.75, 0, generated),
                     f"the logits after the tokens {generated}, with presence 0.75 and "
                     "frequency 0,",
                     "Present is present, however often; and tokens that were never generated "
                     "are not.")


@check("sampling.presence_frequency", points=1, public=True)
def each_time(presence_frequency, rng):
    """The frequency penalty is subtracted as often as the token was generated,
    in each sequence by itself."""
    logits = random_logits(rng, 6)
    generated = [4, 0, 4, 4, 0, 2]
    for presence in (0.0, 1.25):
        expect_processed(presence_frequency, logits, [presence, 0.5, generated],
                         true_presence_frequency(logits, presence, 0.5, generated),
                         f"the logits after the tokens {generated}, with presence {presence} "
                         "and frequency 0.5,",
                         "Token 4 was generated three times. `out[ids] -= x` subtracts once "
                         "for each id, repeated or not.")
    rows = random_logits(rng, 3, 6)
    for generated in ([[4, 4], [0, 5], [3, 0]], [[2, 0, 2], [3], [1, 4, 4, 5]]):
        right = np.stack([true_presence_frequency(row, 0.75, 0.5, ids)
                          for row, ids in zip(rows, generated)])
        expect_processed(presence_frequency, rows, [0.75, 0.5, generated], right,
                         f"the logits (3, 6) after the texts {generated}, with presence 0.75 "
                         "and frequency 0.5,", EACH_ITS_OWN)


@check("sampling.presence_frequency", points=1, public=True)
def negative_and_none(presence_frequency, rng):
    """Negative penalties invite repetition; before the first token nothing changes."""
    logits = random_logits(rng, 5)
    expect_processed(presence_frequency, logits, [-0.5, -0.25, [2, 2, 0]],
                     true_presence_frequency(logits, -0.5, -0.25, [2, 2, 0]),
                     "the logits with presence -0.5 and frequency -0.25",
                     "OpenAI allows both from -2 to 2.")
    for row, none in ((logits, []), (random_logits(rng, 2, 5), [[], []])):
        expect_processed(presence_frequency, row, [1.0, 0.5, none], row,
                         "the logits before the first token",
                         "An empty list makes an array of float64, which is no index.")


@check("sampling.presence_frequency", points=1, public=True)
def any_generated(presence_frequency, rng):
    """Any logits, of one sequence or several, any penalties, and texts that repeat
    themselves."""
    penalty = st.sampled_from([0.5, 0.0, -0.25, 2.0, 1.1])
    cases = st.builds(lambda drawn, presence, frequency: Call((drawn[0], presence, frequency,
                                                               drawn[1])),
                      rows_with_texts(("plain", "ties", "large", "masked")), penalty, penalty)
    expect_like(presence_frequency, sampling.presence_frequency, cases, rng,
                "How often does each token stand in the text of its row?", atol=1e-5)


@check("sampling.presence_frequency", points=0.5, public=False)
def penalties_of_every_kind(presence_frequency, rng):
    """Large, tiny and impossible logits, long texts."""
    for logits in kinds_of_logits(rng, 60):
        generated = rng.integers(0, 20, 150).tolist()
        for presence, frequency in ((1.5, 0.0), (0.0, 0.3), (0.7, -0.2)):
            expect_processed(presence_frequency, logits, [presence, frequency, generated],
                             true_presence_frequency(logits, presence, frequency, generated),
                             "the logits", "")


@check("sampling.presence_frequency", points=0.5, public=False)
def one_text_token_by_token(presence_frequency, rng):
    """A text as it grows: every logit falls by the right amount at every step."""
    logits, text = random_logits(rng, 7, scale=1.0), rng.integers(0, 7, 9).tolist()
    for length in range(len(text) + 1):
        right = true_presence_frequency(logits, 0.4, 0.3, text[:length])
        expect_processed(presence_frequency, logits, [0.4, 0.3, text[:length]], right,
                         "the logits", "")


# --- sample, logprobs

DRAWING = "sampling.sample+logprobs"


def highest_chi_squared(degrees: int) -> float:
    """What a right sampler exceeds less than once in 10⁹ times, by Wilson & Hilferty 1931."""
    degrees = max(degrees, 1)
    return degrees * (1 - 2 / (9 * degrees) + 6 * math.sqrt(2 / (9 * degrees))) ** 3 + 4


def expect_distribution(counts: Mapping[int, int], probabilities: np.ndarray, of: str,
                        hint: str) -> None:
    """Fail when drawn tokens hardly follow a distribution: wrong once in 10⁹ times."""
    total = sum(counts.values())
    strange = [id for id in counts
               if not 0 <= id < len(probabilities) or probabilities[id] == 0]
    expect(not strange, f"{of} to be among the possible ones",
           f"{total} draws with token {strange[:1]} among them", hint)
    expected = probabilities[probabilities > 0] * total
    drawn = np.array([counts.get(int(id), 0) for id in np.flatnonzero(probabilities)])
    distances = (drawn - expected) ** 2 / expected
    if len(counts) == 1 < len(expected):
        hint = ("Every draw gave the same token. Does each take a new number, from the "
                "generator that is given?")
    distance, most = float(distances.sum()), highest_chi_squared(len(expected) - 1)
    worst = int(np.argmax(distances))
    id = int(np.flatnonzero(probabilities)[worst])
    expect(distance <= most,
           f"{of} to follow their probabilities; in {total} draws, token {id} about "
           f"{expected[worst]:.0f} times",
           f"token {id} {int(drawn[worst])} times (chi-squared {distance:.0f}, and {most:.0f} "
           "is the most that chance explains)", hint)


def counted(draws: Sequence[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for id in draws:
        expect_returned(id, "a token id")
        expect(isinstance(id, int | np.integer) and not isinstance(id, bool),
               "a token id, an int", f"a {type(id).__name__}")
        counts[int(id)] = counts.get(int(id), 0) + 1
    return counts


example_of_sample_logprobs = docstring_example(DRAWING, points=1)


@check(DRAWING, points=1.5, public=True)
def as_often_as_likely(sample, logprobs, rng):
    """Each token is drawn as often as it is likely, and an impossible one never."""
    probabilities = rng.permutation([0.4, 0.25, 0, 0.15, 0.1, 0, 0.06, 0.04])
    logits = logits_of(probabilities) + np.float32(rng.uniform(-5, 5))
    with expect_unchanged(logits, hint=UNCHANGED):
        counts = counted([sample(logits, rng) for _ in range(1000)])
    expect_distribution(counts, probabilities, "the tokens",
                        "Is what you draw from softmax(logits)? What becomes of ids when "
                        "impossible tokens are left out?")


@check(DRAWING, points=1, public=True)
def one_number_each(sample, logprobs, rng):
    """A draw uses one number of the generator that it is given:
    the same seed, the same tokens."""
    rows, seed = random_logits(rng, 12, 30, scale=0.3), int(rng.integers(2**32))
    first, second, counter = (np.random.default_rng(seed) for _ in range(3))
    expect_equal([sample(row, first) for row in rows], [sample(row, second) for row in rows],
                 of="12 tokens, drawn again with the same seed,",
                 hint="The generator is the request's own. No other one, and no state of a "
                      "module.")
    counter.random(len(rows))
    expect_equal(first.random(), counter.random(),
                 of="the next number of the generator after 12 draws",
                 hint="Exactly one number for each draw, or two engines with one seed go "
                      "apart.")


@check(DRAWING, points=1, public=True)
def no_distribution(sample, logprobs, rng):
    """Logits with nan or +inf, and logits that are -inf throughout, are refused."""
    for bad, name in ((np.nan, "one logit is nan"), (np.inf, "one logit is +inf"),
                      (-np.inf, "every logit is -inf")):
        logits = np.full(5, IMPOSSIBLE) if bad == -np.inf else random_logits(rng, 5)
        logits[int(rng.integers(5))] = bad
        hint = "A given function of this module refuses them."
        with expect_error(ModelError, when=name, hint=hint), np.errstate(all="ignore"):
            sample(logits, rng)


def true_logprobs(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def expect_logprobs(logprobs, logits: np.ndarray, token: int, top: int, hint: str) -> None:
    with expect_unchanged(logits, hint=UNCHANGED), np.errstate(all="ignore"):
        got = logprobs(logits, token, top)
    right = true_logprobs(logits)
    expect_returned(got, "a TokenLogprob")
    expect(isinstance(got, TokenLogprob), "a TokenLogprob", f"a {type(got).__name__}",
           "The signature names what is returned.")
    expect_equal(got.id, token, of="the id of the chosen token")
    expect_close(np.float64(got.logprob), right[token],
                 of=f"the log-probability of token {token}", dtype=None, atol=1e-5, hint=hint)
    best = sorted(range(len(logits)), key=lambda id: (-right[id], id))[:top]
    expect(all(len(entry) == 2 for entry in got.top),
           "`top` to hold pairs of id and log-probability", f"{got.top!r:.60}")
    expect_equal([id for id, _ in got.top], best,
                 of=f"the ids of the {top} likeliest tokens, best first,",
                 hint="Of equally likely tokens the lower id comes first, and never more "
                      "tokens than there are.")
    for id, number in got.top:
        expect_close(np.float64(number), right[id],
                     of=f"the log-probability of token {id} among the likeliest", dtype=None,
                     atol=1e-5, hint=hint)
        expect(id != token or number == got.logprob,
               "the very same number for a token that is chosen and among the likeliest",
               f"{got.logprob!r} and {number!r}", "Read both from one array.")


@check(DRAWING, points=1, public=True)
def how_likely(sample, logprobs, rng):
    """The natural logarithm of the chosen token's probability,
    with and without alternatives."""
    logits = np.sort(random_logits(rng, 9))
    for top in (0, 3):
        for token in (8, int(rng.integers(8))):
            expect_logprobs(logprobs, logits, token, top,
                            "Logarithms of probabilities are at most 0; these are natural "
                            "ones.")


@check(DRAWING, points=1, public=True)
def alternatives(sample, logprobs, rng):
    """Ties, more alternatives than tokens,
    and tokens so unlikely that their probability is 0 in float32."""
    for top in (5, 30):
        expect_logprobs(logprobs, rng.integers(0, 3, 64).astype(np.float32), 7, top,
                        "Many tokens are equally likely here.")
    logits = rng.permutation(np.float32([4, 1, 1, 1, 0, -150]))
    for top in (2, 3, 5, 9):
        expect_logprobs(logprobs, logits, int(logits.argmin()), top,
                        "exp(-154) is 0 in float32, and the logarithm of 0 is no answer: "
                        "`log_softmax` is given.")


@st.composite
def draws(draw) -> Call:
    """Logits with ties and impossible tokens, a few or as many as Qwen has, and generators of
    any seed, the two with the least and the most number among them."""
    widths = (3, 1, 5, 151_936) if draw(st.sampled_from([False] * 9 + [True])) else (3, 1, 5)
    logits = draw(rows(widths=widths, axes=(1,), values=("plain", "masked", "masked", "ties",
                                                         "masked", "low", "zeros", "large")))
    return Call((logits, draw(generators())))


@check(DRAWING, points=1, public=True)
def any_draw(sample, logprobs, rng):
    """Whatever number the generator gives, 0 too, the token is one of those that are
    possible; and the log-probabilities of any logits."""
    def demand(case: Call) -> None:
        (logits, generator), _ = case.made()
        same, shown = copy.deepcopy(generator), f"`{typed(case, 'sample')}`"
        if not np.isfinite(logits).any():
            with expect_error(ModelError, when=f"asked for {shown}"):
                sample(logits, generator)
            return
        with expect_unchanged(logits, hint=UNCHANGED):
            token = sample(logits, generator)
        counted([token])
        never = 0 if case.args[1].next else 1e-12                # so rare that no seed draws it
        possible = np.flatnonzero(true_softmax(logits) > never)
        expect(token in possible, f"{shown} to be a token that is possible, such as "
               f"{possible[0]}", f"{token!r}",
               "What does your search find for the number 0, and for the largest below 1? "
               "Where the sums stay equal there are tokens of probability 0.")
        same.random()
        expect(generator.bit_generator.state == same.bit_generator.state,
               f"one number of the generator to be used by {shown}", "another count of them",
               "One `rng.random()`, and nothing else.")
    with np.errstate(all="ignore"):
        expect_on_all(draws(), demand, rng, 150)
        masked = rows(widths=(3, 2, 5), axes=(1,), values=("masked",))
        least = st.just(Generator(next="least"))
        expect_on_all(calls(masked, least), demand, rng)
    deep = np.float32([-4e9, -np.inf, -4e9])
    for _ in range(16):
        token = sample(deep, rng)
        expect(token in (0, 2), f"a token that {deep.tolist()} allows", f"{token!r}",
               "-inf is less than every number. What is impossible, and what is only deep "
               "down?")
    logits = rows(widths=(3, 1, 5, 40), axes=(1,), values=("plain", "ties", "large", "tiny"))
    cases = logits.flatmap(
        lambda logits: calls(st.just(logits), st.integers(0, logits.shape[0] - 1),
                             st.integers(0, 6)))
    expect_like(logprobs, sampling.logprobs, cases, rng,
                "Natural logarithms, of the model's own probabilities; of equals the lower id "
                "first.", atol=1e-5)


@check(DRAWING, points=0.5, public=False)
def draws_of_every_kind(sample, logprobs, rng):
    """Large logits, a single possible token at any place, many equal ones."""
    for place in (0, 3, 6):
        logits = np.full(7, IMPOSSIBLE)
        logits[place] = -2000
        expect_equal([sample(logits, rng) for _ in range(5)], [place] * 5, of="the tokens")
    logits = logits_of([0.02, 0.5, 0.18, 0.3]) + np.float32(3000)
    expect_distribution(counted([sample(logits, rng) for _ in range(800)]),
                        true_softmax(logits), "the tokens", "")
    expect_distribution(counted([sample(np.zeros(5, np.float32), rng) for _ in range(500)]),
                        np.full(5, 0.2), "the tokens", "")


@check(DRAWING, points=0.5, public=False)
def one_generator_for_each(sample, logprobs, rng):
    """Generators of several requests, taken in turn, give each what it would have had alone."""
    rows, seeds = random_logits(rng, 6, 50, scale=0.5), rng.integers(2**32, size=3).tolist()
    generators = [np.random.default_rng(seed) for seed in seeds]
    together = [[sample(row, generator) for generator in generators] for row in rows]
    for number, seed in enumerate(seeds):
        alone = np.random.default_rng(seed)
        expect_equal([sample(row, alone) for row in rows], [step[number] for step in together],
                     of="the tokens")
    expect(len(set(map(tuple, np.transpose(together).tolist()))) == 3,
           "other tokens for other seeds", "the same ones for all")


@check(DRAWING, points=0.5, public=False)
def logprobs_of_every_kind(sample, logprobs, rng):
    """Large, tiny and mostly impossible logits, ties everywhere."""
    for logits in [*kinds_of_logits(rng, 24), rng.integers(-1, 2, 15).astype(np.float32)]:
        for top in (1, 4, 15):
            token = int(rng.choice(np.flatnonzero(logits > -np.inf)))
            expect_logprobs(logprobs, logits, token, top, "")


# --- typical


def typical_order(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Possible tokens, the most typical first, their distances, sums of their probabilities."""
    possible = np.flatnonzero(row > -np.inf)
    logarithms = true_logprobs(row[possible])
    distance = np.abs(-logarithms + (np.exp(logarithms) * logarithms).sum())
    order = np.argsort(distance, kind="stable")
    return possible[order], distance[order], np.cumsum(np.exp(logarithms[order]))


def true_typical(logits: np.ndarray, p: float) -> np.ndarray:
    out = np.full(np.atleast_2d(logits).shape, IMPOSSIBLE)
    for row, right in zip(np.atleast_2d(logits), out):
        ids, distance, sums = typical_order(row)
        last = min(int((sums < p - 1e-12).sum()), len(ids) - 1)
        kept = ids[distance <= distance[last] + 1e-9]
        right[kept] = row[kept]
    return out.reshape(logits.shape)


def typical_border(logits: np.ndarray, rng: np.random.Generator) -> float:
    return apart([0, *typical_order(logits)[2]], rng)


example_of_typical = docstring_example("sampling.typical", points=0.5)


@check("sampling.typical", points=0.5, public=True)
def neither_sure_nor_strange(typical, rng):
    """Tokens whose surprise is near to what is expected stay, until p is reached;
    the likeliest may go."""
    probabilities = rng.permutation([0.5, 0.2, 0.15, 0.1, 0.05])
    for p in (0.3, 0.6, 0.1):
        expect_processed(typical, logits_of(probabilities), [p],
                         true_typical(logits_of(probabilities), p),
                         f"the logits of the probabilities {probabilities.tolist()} after "
                         f"typical sampling with p={p}",
                         "Compute each token's surprise, their mean, and how far each is from "
                         "it. The nearest come first; the one that reaches p stays.")


@check("sampling.typical", points=1, public=True, always=(1,))
def typical_ties_and_all(typical, rng):
    """Of tokens equally near at the border all stay; with p = 1 everything does."""
    probabilities = rng.permutation([0.4, 0.2, 0.2, 0.2])
    logits = logits_of(probabilities)
    expect_processed(typical, logits, [0.3], true_typical(logits, 0.3),
                     f"the logits of the probabilities {probabilities.tolist()} after typical "
                     "sampling with p=0.3",
                     "Compare distances with that of the last token which is needed.")
    logits = random_logits(rng, 5, scale=0.7)
    expect_processed(typical, logits, [1.0], logits,
                     "the logits after typical sampling with p=1", "")


@check("sampling.typical", points=1, public=True)
def impossible_tokens(typical, rng):
    """Impossible tokens stay so and spoil nothing, not even where all are;
    sequences are worked on one by one."""
    logits = random_logits(rng, 3, 10)
    logits[:, rng.permutation(10)[:4]] = IMPOSSIBLE
    p = typical_border(logits[0], rng)
    expect_processed(typical, logits[0], [p], true_typical(logits[0], p),
                     f"the logits after typical sampling with p={p:.3f}",
                     "0 · -inf is nan, and a nan in the mean makes every distance nan.")
    expect_processed(typical, logits, [1e-6], true_typical(logits, 1e-6),
                     "the logits (3, 10) after typical sampling with p=1e-6", "")
    logits[1] = IMPOSSIBLE
    right = np.stack([true_typical(row, 0.5) if np.isfinite(row).any() else row
                      for row in logits])
    expect_processed(typical, logits, [0.5], right,
                     "the logits (3, 10), with a second row of nothing but -inf, after typical "
                     "sampling with p=0.5",
                     "Where nothing is possible nothing can be ruled out. Who draws from such "
                     "a row is refused there.")


def sums_of_typical(row: np.ndarray) -> np.ndarray:
    """The sums that decide; none where rounding alone says what is nearest."""
    ids, distance, sums = typical_order(row)
    unclear = (np.diff(distance) < 4e-5) & (np.diff(row[ids]) != 0)
    return np.array([]) if unclear.any() else sums


def clearly_typical(case: Call) -> bool:
    row = case.made()[0][0]
    return not np.isfinite(row).any() or len(sums_of_typical(row)) > 0


@check("sampling.typical", points=1, public=True)
def any_surprise(typical, rng):
    """Any logits, with ties and impossible tokens, and a p between two of the sums."""
    def right(logits: np.ndarray, p: float) -> np.ndarray:
        return true_typical(logits, p) if np.isfinite(logits).any() else logits

    cases = with_border(sums_of_typical, all_of=True).filter(clearly_typical)
    expect_like(typical, right, cases, rng,
                "Each token's surprise, their mean, the distances; the nearest first, until p "
                "is reached.", name="typical", examples=150)


@check("sampling.typical", points=0.5, public=False, always=(1,))
def typical_of_every_kind(typical, rng):
    """Large, tiny and mostly impossible logits; one possible token."""
    alone = np.full(9, IMPOSSIBLE)
    alone[int(rng.integers(9))] = 3
    for logits in (*kinds_of_logits(rng, 24), alone):
        if logits is not alone and np.ptp(typical_order(logits)[1]) < 1e-2:
            continue                       # of tiny logits rounding alone says which is nearest
        p = 0.5 if logits is alone else typical_border(logits, rng)
        expect_processed(typical, logits, [p], true_typical(logits, p), "the logits", "",
                         atol=0)


@check("sampling.typical", points=0.5, public=False)
def typical_like_hugging_face(typical, rng):
    """As Hugging Face's TypicalLogitsWarper."""
    from transformers.generation.logits_process import TypicalLogitsWarper

    for scale in (0.7, 2.0):
        logits = random_logits(rng, 60, scale=scale)
        for _ in range(3):
            p = typical_border(logits, rng)
            right = by_hugging_face(TypicalLogitsWarper(p), logits)
            expect_processed(typical, logits, [p], right, "the logits", "", atol=1e-6)


# --- mirostat


def kept_by_mirostat(logits: np.ndarray, mu: float) -> np.ndarray:
    """The probabilities of what is left, (V,)."""
    bits = -true_logprobs(logits) / math.log(2)
    left = np.where((bits <= mu) | (logits == logits.max()), np.exp(-bits * math.log(2)), 0)
    return left / left.sum()


def expect_mirostat(mirostat, logits: np.ndarray, mu: float, tau: float, eta: float,
                    rng: np.random.Generator, draws: int, hint: str) -> None:
    probabilities, tokens = kept_by_mirostat(logits, mu), []
    for _ in range(draws):
        with expect_unchanged(logits, hint=UNCHANGED), np.errstate(all="ignore"):
            got = mirostat(logits, mu, tau, eta, rng)
        expect_returned(got, "a token and the next mu")
        expect(isinstance(got, tuple | list) and len(got) == 2, "a token and the next mu",
               f"{got!r:.60}")
        tokens.append(got[0])
        counted(tokens[-1:])
        bits = -true_logprobs(logits)[got[0] % len(logits)] / math.log(2)
        expect(0 <= got[0] < len(logits) and probabilities[got[0]] > 0,
               f"a token that mu={mu:.2f} bits allows",
               f"token {got[0]}, which has {bits:.2f} bits", hint)
        right = mu - eta * (-math.log2(probabilities[got[0]]) - tau)
        expect_close(np.float64(got[1]), np.float64(right), dtype=None, atol=1e-4,
                     of=f"the next mu after token {got[0]}, with mu={mu:.2f}, tau={tau:g}, "
                        f"eta={eta:g},",
                     hint="How surprising is the token among what was left, and which way must "
                          "mu go?")
    if draws >= 200:
        expect_distribution(counted(tokens), probabilities, "the tokens", hint)


example_of_mirostat = docstring_example("sampling.mirostat", points=0.5)


@check("sampling.mirostat", points=0.5, public=True)
def at_most_mu_bits(mirostat, rng):
    """Tokens more surprising than mu bits are ruled out;
    the others are drawn as they are likely."""
    logits = logits_of(rng.permutation([0.4, 0.25, 0.2, 0.1, 0.05]))
    expect_mirostat(mirostat, logits, 3.0, 2.0, 0.1, rng, 400,
                    "A probability of 1/8 is 3 bits. Which tokens have more?")


@check("sampling.mirostat", points=1, public=True)
def mu_learns(mirostat, rng):
    """After a token more surprising than tau mu falls, after another it grows,
    eta times as much."""
    for tau, eta in ((3.0, 0.1), (0.5, 0.5), (1.0, 1.0)):
        logits = logits_of(rng.permutation([0.5, 0.3, 0.15, 0.05]))
        expect_mirostat(mirostat, logits, 2 * tau, tau, eta, rng, 8,
                        "2 · tau is where mu begins, nothing else.")


@check("sampling.mirostat", points=1, public=True, always=(0,))
def the_likeliest_stays(mirostat, rng):
    """When mu allows no token, the likeliest is taken; when it allows all, all are.
    Broken logits are refused."""
    logits = random_logits(rng, 6)
    for mu in (0.0, -1.5, 1e-4):
        expect_mirostat(mirostat, logits, mu, 3.0, 0.1, rng, 3,
                        "Something must be left to draw from.")
    expect_mirostat(mirostat, logits_of(rng.permutation([0.4, 0.3, 0.2, 0.1])), 50.0, 3.0, 0.1,
                    rng, 300, "")
    for bad, name in ((np.nan, "one logit is nan"), (np.inf, "one logit is +inf"),
                      (-np.inf, "every logit is -inf")):
        broken = np.full(6, IMPOSSIBLE) if bad == -np.inf else logits.copy()
        broken[int(rng.integers(6))] = bad
        hint = "`refuse_unusable` is given."
        with expect_error(ModelError, when=name, hint=hint), np.errstate(all="ignore"):
            mirostat(broken, 6.0, 3.0, 0.1, rng)


@st.composite
def surprises(draw) -> Call:
    """Logits, and a mu that lies clearly between the bits of two tokens, or beyond all."""
    logits = draw(rows(widths=(3, 1, 5, 40), axes=(1,),
                       values=("plain", "ties", "low", "large")))
    bits = -true_logprobs(logits.made()) / math.log(2)
    mu = draw(st.one_of(between(bits), st.sampled_from([50.3, -1.5])))
    return Call((logits, 2.71 if mu is None else mu, draw(st.sampled_from([3.0, 0.5])),
                 draw(st.sampled_from([0.1, 1.0])), draw(generators())))


@check("sampling.mirostat", points=1, public=True)
def any_surprise_allowed(mirostat, rng):
    """Any logits, any mu, and whatever number the generator gives, 0 too."""
    def demand(call: Call) -> None:
        (logits, *settings, generator), _ = call.made()
        expect_mirostat(mirostat, logits, *settings, generator, 1,
                        f"This was `{typed(call, 'mirostat')}`.")
    with np.errstate(all="ignore"):
        expect_on_all(surprises(), demand, rng, 120)


@check("sampling.mirostat", points=0.5, public=False, always=(2,))
def texts_of_mirostat(mirostat, rng):
    """Many steps with random logits: every token is allowed, every mu is right."""
    mu, tau = 4.0, 2.0
    for _ in range(40):
        logits = random_logits(rng, 12)
        mu = apart([mu - 2, *(-true_logprobs(logits) / math.log(2))], rng)
        expect_mirostat(mirostat, logits, mu, tau, 0.3, rng, 1, "")


@check("sampling.mirostat", points=0.5, public=False, always=(0,))
def mirostat_of_every_kind(mirostat, rng):
    """Large and impossible logits; the same seed gives the same tokens."""
    large = np.float32([-400, 600, 599, 250, -np.inf])
    expect_mirostat(mirostat, large, 6.0, 1.0, 0.1, rng, 300, "")
    expect_mirostat(mirostat, np.float32([0, 2, 1.9, -np.inf]), 0.5, 1.0, 0.1, rng, 5, "")
    logits, seed = random_logits(rng, 40, scale=0.3), int(rng.integers(2**32))
    first, second = np.random.default_rng(seed), np.random.default_rng(seed)
    expect_equal([mirostat(logits, 6.0, 2.0, 0.1, first)[0] for _ in range(9)],
                 [mirostat(logits, 6.0, 2.0, 0.1, second)[0] for _ in range(9)],
                 of="the tokens with the same seed")
