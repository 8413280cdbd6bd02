"""Matrix products of a few rows, for which OpenBLAS has no routine of its own.

For one row it multiplies a vector by a matrix, and reads the matrix once. For several it
multiplies two matrices, and copies the larger into blocks first, which pays for hundreds of
rows and costs more than the product for two. And it likes numbers of rows that 8 divides: five
rows cost more than eight.

How many rows a product has also decides in which order its sums are taken, so a row's last bits
change with its neighbours. `fixed_shapes` takes that freedom away.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_OPENBLAS = "openblas" in str(np.show_config(mode="dicts").get("Build Dependencies"))
# Rows, up to which one after the other was faster, on one thread and on two (AMD EPYC). Other
# libraries: not measured.
FEW = 4 if _OPENBLAS else 1
# Numbers of rows that OpenBLAS likes are multiples of this; beyond MANY it hardly matters
EVEN, MANY = (8, 64) if _OPENBLAS else (1, 0)
# Numbers of the matrix at a time: 8 MiB, which stay in the last cache until all rows met them
BLOCK = 2**21

_SHAPES: ContextVar[Sequence[int] | None] = ContextVar("_SHAPES", default=None)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a @ b`, in the way that is fastest for the number of rows.

    2 to `FEW` rows go through `b` one by one, as a single row does; up to `MANY` are made even
    with rows of zeros.
    a: (..., n); b: (n, m), in any memory layout; returns (..., m).
    Raises ValueError as `@` does.

    >>> matmul(np.array([[1., 2.], [3., 4.]], np.float32),
    ...        np.array([[0., 1.], [1., 1.]], np.float32))
    array([[2., 3.],
           [4., 7.]], dtype=float32)
    """
    shapes = _SHAPES.get()
    if shapes is not None and a.ndim == 2:
        return _in_shapes(a, b, shapes)
    if a.ndim == 2 and 1 < len(a) <= FEW:
        return _one_by_one(a, b)
    if a.ndim != 2 or not FEW < len(a) <= MANY or len(a) % EVEN == 0:
        return a @ b
    even = np.zeros((-(-len(a) // EVEN) * EVEN, a.shape[1]), a.dtype)
    even[:len(a)] = a
    return (even @ b)[:len(a)]


def _one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    columns = max(1, BLOCK // len(b))
    for start in range(0, b.shape[1], columns):
        np.vecmat(a, b[:, start:start + columns], out=product[:, start:start + columns])
    return product


@contextmanager
def fixed_shapes(counts: Sequence[int]) -> Iterator[None]:
    """While this holds, a row's product does not depend on rows outside of its own group.

    counts: how many rows each group of a step has, in order. A group of several is one product
    of its own; a single row goes through the matrix alone, as it always does then. Where other
    numbers of rows come in than all of the step's, each of them is alone.
    """
    token = _SHAPES.set(counts)
    try:
        yield
    finally:
        _SHAPES.reset(token)


def each_alone(function: Callable[..., np.ndarray], *rows: np.ndarray) -> np.ndarray:
    """`function(*rows)`, whose products are not all `matmul`'s.

    rows: arrays of the same length; the function gives one row for each of theirs, and no row
    needs another one. Within `fixed_shapes` it is called for each row alone, so that none of
    its products knows how many rows there are.
    """
    if _SHAPES.get() is None:
        return function(*rows)
    return np.concatenate([function(*(each[place:place + 1] for each in rows))
                           for place in range(len(rows[0]))])


def _in_shapes(a: np.ndarray, b: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    if sum(counts) != len(a):
        return _one_by_one(a, b)
    products, start, alone = [], 0, 0              # rows from `alone` to `start` are single
    for count in [*counts, 0]:
        if count == 1:
            start += 1
            continue
        if alone < start:
            products.append(_one_by_one(a[alone:start], b))
        if count:
            products.append(a[start:start + count] @ b)
        start += count
        alone = start
    return products[0] if len(products) == 1 else np.concatenate(products)
