"""How the KV cache grows, and what it saves.

The numbers come from the caller (`gearworks.accounting`); nothing about models is computed
here.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from gearworks.viz.figure import Figure, player
from gearworks.viz.quantities import number, with_prefix
from gearworks.viz.trace import FigureError, Line, Point, Step, Trace

_MOST = 4                                    # as many lines as there are patterns for them


def cache_growth(tokens: Sequence[int], memory_bytes: Mapping[str, Sequence[float]],
                 step_flops: Mapping[str, Sequence[float]],
                 title: str = "The cache grows") -> Figure:
    """What weights and cache take and the next token costs, by text length, on logarithmic
    axes.

    tokens: lengths of the text, growing. memory_bytes: {layout: bytes of weights and cache at
    each length}, for example of MHA, GQA and MLA. With the weights in it, a line bends where
    the cache outgrows them; of the cache alone all lines would be parallel.
    step_flops: {way: FLOPs of the step that computes one token more, at each length}, for
    example with and without the cache. The reader chooses between the two, and a slider moves
    along the lengths. Four lines at most in each.
    Raises FigureError for lists of unequal length, and for numbers that are not positive.

    >>> figure = cache_growth([1, 10], {"GQA": [2e3, 2e4]},
    ...                       {"with": [1e6, 1e6], "without": [1e6, 1e7]})
    >>> print(figure.words.splitlines()[-3])
    Tokens 10: “without” 10 times as much as “with”.
    """
    tokens = [int(count) for count in tokens]
    if not tokens or any(later <= earlier for earlier, later in zip(tokens, tokens[1:])):
        raise FigureError("cannot draw this growth", f"the lengths are {tokens}",
                          "give growing numbers of tokens")
    return player([_growth("What weights and cache take", tokens, memory_bytes, "B", "bytes"),
                   _growth("What one more token costs", tokens, step_flops, "FLOP",
                           "FLOPs of the step")], title)


def _growth(title: str, tokens: Sequence[int], curves: Mapping[str, Sequence[float]], unit: str,
            y_label: str) -> Trace:
    if (not 1 <= len(curves) <= _MOST
        or any(len(curve) != len(tokens) for curve in curves.values())):
        raise FigureError("cannot draw this growth",
                          f"there are {[len(curve) for curve in curves.values()]} numbers for "
                          f"{len(tokens)} lengths",
                          f"give one to {_MOST} lists, each with a number for every length")
    curves = {name: np.asarray(curve, np.float64).tolist() for name, curve in curves.items()}

    def step(i: int) -> Step:
        here = {name: curve[i] for name, curve in curves.items()}
        least = min(here, key=here.__getitem__)
        ratios = [f"“{name}” {number(size / here[least])} times" for name, size in here.items()
                  if size > here[least]]
        return Step(f"{', '.join(ratios)} as much as “{least}”." if ratios else "All the same.",
                    label=f"{tokens[i]:,}",
                    points=[Point(name, tokens[i], size, name) for name, size in here.items()],
                    values={name: with_prefix(size, unit) for name, size in here.items()})

    return Trace(title, [step(i) for i in range(len(tokens))], view="plot",
                 legend={name: name for name in curves}, step_name="Tokens",
                 lines=[Line("", list(zip(tokens, curve))) for curve in curves.values()],
                 x_label="tokens of the text", y_label=y_label)
