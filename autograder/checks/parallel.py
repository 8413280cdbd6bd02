"""Checks of tensor parallelism: each process's part in a linear layer."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect_close, expect_equal, expect_unchanged
from autograder.checking.differential import expect_on_all
from autograder.checking.examples import docstring_example
from autograder.checks.layers import vectors
from autograder.generators.arrays import numbers, sizes
from autograder.generators.calls import made
from gearworks.layers import silu

EXERCISE = "parallel.column_linear+row_linear"
PLACES = ["token", "output"]

Run = Callable[[int, Callable], np.ndarray]


def everywhere(run: Run, size: int, gather: bool, of: str) -> list[np.ndarray]:
    """What each of `size` processes gets that all run the same code and meet once.

    run: of a rank and the function by which it meets the others. They run one after the other,
    twice: the first time nobody knows yet what the later ones will bring.
    """
    name = "all_gather" if gather else "all_reduce"
    brought: list[list[np.ndarray]] = [[] for _ in range(size)]

    def first(rank: int) -> Callable:
        def meet(own: np.ndarray):
            brought[rank].append(np.array(own))
            return [own] * size if gather else own
        return meet

    for rank in range(size):
        run(rank, first(rank))
        expect_equal(len(brought[rank]), 1, of=f"the number of calls of `{name}` for {of}",
                     hint="Every call waits for all processes; one is enough.")
    shapes = {arrays[0].shape for arrays in brought}
    expect_equal(len(shapes), 1, of=f"the number of shapes that the processes give to `{name}`")
    parts = [arrays[0] for arrays in brought]

    def second(own: np.ndarray):
        return [part.copy() for part in parts] if gather else np.sum(parts, axis=0)
    return [run(rank, second) for rank in range(size)]


def layer(rng: np.random.Generator, size: int, outputs: bool, T: int = 3,
          scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (T, in), a weight (out, in) and a bias (out,); `size` divides what is dealt out."""
    own, whole = (int(rng.integers(*bounds)) for bounds in ((2, 6), (5, 12)))
    cut = own * size
    out, into = (cut, whole) if outputs else (whole, cut)
    return (vectors(rng, T, into, scale=scale), vectors(rng, out, into),
            vectors(rng, out, scale=scale))


def exact(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """The layer in one process, in float64."""
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return (y if bias is None else y + bias).astype(np.float32)


def parts(array: np.ndarray, size: int, axis: int = 0) -> list[np.ndarray]:
    return [np.ascontiguousarray(part) for part in np.split(array, size, axis=axis)]


def expect_columns(column_linear, x, weight, bias, size: int, gathered: bool,
                   hint: str = "") -> None:
    weights, truth = parts(weight, size), exact(x, weight, bias)
    biases = [None] * size if bias is None else parts(bias, size)
    how = "with" if gathered else "without"
    of = f"the outputs in process {{}} of {size}, {how} all_gather"
    if gathered:
        got = everywhere(lambda rank, meet: column_linear(x, weights[rank], biases[rank], meet),
                         size, True, "one column_linear")
        expected = [truth] * size
    else:
        got = [column_linear(x, *own) for own in zip(weights, biases)]
        expected = parts(truth, size, axis=1)
    for rank, (own, right) in enumerate(zip(got, expected)):
        expect_close(own, right, of=of.format(rank), axes=PLACES, atol=1e-4, hint=hint)


def expect_rows(row_linear, x, weight, bias, size: int, hint: str = "") -> None:
    weights, inputs = parts(weight, size, axis=1), parts(x, size, axis=1)
    got = everywhere(lambda rank, meet: row_linear(inputs[rank], weights[rank], meet, bias),
                     size, False, "one row_linear")
    for rank, whole in enumerate(got):
        expect_close(whole, exact(x, weight, bias), axes=PLACES, atol=1e-4, hint=hint,
                     of=f"the outputs in process {rank} of {size}")


example_of_column_linear_row_linear = docstring_example(EXERCISE, points=1)


@check(EXERCISE, points=2, public=True)
def own_outputs(column_linear, row_linear, rng):
    """Cut by its outputs: each process has its own, and asks nobody."""
    size = int(rng.integers(2, 5))
    x, weight, bias = layer(rng, size, outputs=True)
    hint = "It is a linear layer with fewer outputs. Which part of the bias is at hand?"
    expect_columns(column_linear, x, weight, None, size, False, hint)
    expect_columns(column_linear, x, weight, bias, size, False, hint)


@check(EXERCISE, points=1, public=True)
def all_outputs(column_linear, row_linear, rng):
    """With all_gather every process has all outputs, those of rank 0 first."""
    size = int(rng.integers(2, 5))
    x, weight, bias = layer(rng, size, outputs=True)
    expect_columns(column_linear, x, weight, bias, size, True,
                   "`all_gather` gives a list of arrays (T, out / n). Along which axis do they "
                   "belong together?")


@check(EXERCISE, points=2, public=True)
def one_sum(column_linear, row_linear, rng):
    """Cut by its inputs: each process has a part of every sum; all_reduce adds them up."""
    size = int(rng.integers(2, 5))
    x, weight, _ = layer(rng, size, outputs=False)
    expect_rows(row_linear, x, weight, None, size,
                "Split an output's sum over the inputs: which terms does this process know? "
                "What all_reduce returns is the sum of all processes' arrays.")


@check(EXERCISE, points=2, public=True)
def bias_once(column_linear, row_linear, rng):
    """The bias is added once, however many processes there are."""
    size = int(rng.integers(2, 5))
    x, weight, bias = layer(rng, size, outputs=False)
    expect_rows(row_linear, x, weight, bias, size,
                "Every process has the whole bias. What happens to it if all of them add it "
                "before the sum?")


@check(EXERCISE, points=1, public=True)
def a_feed_forward_network(column_linear, row_linear, rng):
    """Two layers with an activation between them need a single sum."""
    size = int(rng.integers(2, 4))
    x, up, up_bias = layer(rng, size, outputs=True)
    down, down_bias = vectors(rng, 7, len(up)), vectors(rng, 7)
    ups, biases, downs = parts(up, size), parts(up_bias, size), parts(down, size, axis=1)

    def run(rank: int, meet: Callable) -> np.ndarray:
        return row_linear(silu(column_linear(x, ups[rank], biases[rank])), downs[rank], meet,
                          down_bias)
    hidden = silu(exact(x, up, up_bias))
    for rank, got in enumerate(everywhere(run, size, False, "the whole network")):
        expect_close(got, exact(hidden, down, down_bias), axes=PLACES, atol=2e-4,
                     of=f"the network's output in process {rank} of {size}",
                     hint="This one follows from the checks above.")


@st.composite
def dealt(draw) -> tuple:
    """A layer whose outputs or inputs are dealt out to so many processes."""
    count, own, whole = draw(sizes(2, 1, 3)), draw(sizes(2, 1, 3)), draw(sizes(3, 1, 5))
    by_outputs = draw(st.booleans())
    out, into = (own * count, whole) if by_outputs else (whole, own * count)
    kinds = ("plain", "ties", "tiny")
    bias = draw(st.sampled_from([None, draw(numbers(out, values=kinds))]))
    return (draw(numbers(draw(sizes(2, 1, 0)), into, values=kinds)),
            draw(numbers(out, into, values=kinds)), bias, count, by_outputs,
            draw(st.booleans()))


@check(EXERCISE, points=0.5, public=True)
def any_deal(column_linear, row_linear, rng):
    """Layers of any sizes, dealt out to one process or several, with a bias and without."""
    hint = "Which rows, columns and part of the bias has each process, and when do they meet?"

    def demand(case: tuple) -> None:
        *arrays, count, by_outputs, gathered = case
        x, weight, bias = made(arrays)
        if by_outputs:
            expect_columns(column_linear, x, weight, bias, count, gathered, hint)
        else:
            expect_rows(row_linear, x, weight, bias, count, hint)
    expect_on_all(dealt(), demand, rng)


@check(EXERCISE, points=0.5, public=False, always=(3,))
def odd_numbers(column_linear, row_linear, rng):
    """One process, five of them, no token; nothing that was given is changed."""
    for size, T in ((1, 2), (5, 1), (3, 0)):
        x, weight, bias = layer(rng, size, outputs=True, T=T, scale=20.0)
        with expect_unchanged(x, weight, bias):
            expect_columns(column_linear, x, weight, bias, size, bool(rng.integers(2)))
        x, weight, bias = layer(rng, size, outputs=False, T=T, scale=20.0)
        with expect_unchanged(x, weight, bias):
            expect_rows(row_linear, x, weight, bias, size)
