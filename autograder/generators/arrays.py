"""Arrays that tell wrong formulas apart: large, tiny, tied, near -1e4; cut, turned and locked.

An array is a recipe, so that it travels as a few numbers, shrinks with them, and a message can
say in one line how to make it again. Values have few digits: they print as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from autograder.generators.calls import SMALL, typed

# How values come from normally distributed numbers `x`. The first is the plainest.
VALUES = {"plain": "{x}.round(2)", "ties": "{x}.round()", "large": "(200 * {x}).round(1)",
          "tiny": "(0.001 * {x}).round(5)", "low": "{x}.round(2) - 1e4", "zeros": "0 * {x}"}
# Scores of which many are impossible, some rows throughout; for those who ask for it.
MASKED = {"masked": "np.where({x} < 0.3, -np.inf, {x}.round(2))"}
# How they lie in memory: in rows; columns first; every second of a longer array; read-only.
LAYOUTS = ("rows", "columns", "strided", "locked")


@dataclass(frozen=True)
class Numbers:
    """An array of this shape: which random numbers, what becomes of them, and how they lie."""

    shape: tuple[int, ...]
    seed: int = 0
    values: str = "plain"
    layout: str = "rows"
    dtype: str = "float32"

    def made(self) -> np.ndarray:
        """The array itself."""
        x = np.asarray(np.random.default_rng(self.seed).normal(size=self.shape))
        values = {"plain": lambda: x.round(2), "ties": lambda: x.round(),
                  "large": lambda: (200 * x).round(1), "tiny": lambda: (0.001 * x).round(5),
                  "low": lambda: x.round(2) - 1e4, "zeros": lambda: 0 * x,
                  "masked": lambda: np.where(x < 0.3, -np.inf, x.round(2))}[self.values]
        array = np.array(values() + 0.0, self.dtype)                      # no zero is negative
        if not array.ndim:
            return array
        if self.layout == "columns":
            return np.asfortranarray(array)
        if self.layout == "strided":
            return np.repeat(array, 2, axis=-1)[..., ::2]
        array.flags.writeable = self.layout != "locked"
        return array

    def typed(self) -> str:
        """Python that gives the array."""
        array = self.made()
        if array.size <= SMALL:
            text = typed(array)
        else:
            x = f"np.random.default_rng({self.seed}).normal(size={self.shape})"
            text = f"({(VALUES | MASKED)[self.values].format(x=x)}).astype(np.{self.dtype})"
        if not array.ndim:
            return text
        return {"rows": text, "columns": f"np.asfortranarray({text})",
                "strided": f"np.repeat({text}, 2, -1)[..., ::2]",
                "locked": f"{text} (read-only)"}[self.layout]


def numbers(*shape: int, values: Sequence[str] = tuple(VALUES), dtype: str = "float32",
            layouts: Sequence[str] = LAYOUTS) -> st.SearchStrategy[Numbers]:
    """Arrays of one shape."""
    return st.builds(Numbers, st.just(shape), st.integers(0, 2**16), st.sampled_from(values),
                     st.sampled_from(layouts), st.just(dtype))


def sizes(*likely: int) -> st.SearchStrategy[int]:
    """One of these sizes; the first is what it shrinks to."""
    return st.sampled_from(likely)


@st.composite
def rows(draw, widths: Sequence[int] = (3, 1, 5, 8, 128, 200), axes: Sequence[int] = (1, 2, 3),
         least: int = 1, **options) -> Numbers:
    """Arrays whose last axis is a vector: one, none, or several, along one to three axes."""
    count = draw(st.sampled_from(axes))
    shape = [draw(sizes(2, 1, 3, 4, *([0] * (least == 0)))) for _ in range(count - 1)]
    return draw(numbers(*shape, draw(sizes(*widths)), **options))
