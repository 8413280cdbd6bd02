"""One step of a model, watched: which operators ran, how long, and what they had to move.

Nothing in the engine knows of it. While a step is watched, the operators' names in the engine's
modules stand for versions that look at a clock; before and after, they are the functions
themselves. So an engine that is not watched is as fast as ever, and one with a learner's gears
is watched like any other.

Bytes are those of `accounting.bytes_moved`: weights, and keys and values, that must come from
memory or go there. FLOPs are those of `accounting.forward_flops`: of matrix products, and of
attention only for keys that a query may see. What a norm or an activation computes counts for
nothing in either, only for time.
"""

import functools
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gearworks import attention, layers, moe
from gearworks.config import ModelConfig
from gearworks.families import gpt_oss
from gearworks.families.layouts import Weights
from gearworks.kv_cache import Cache

NORMS, ATTENTION, BETWEEN = "norms", "attention", "between them"


@dataclass(frozen=True)
class Operator:
    """What one operator did in a step, in all layers together.

    seconds: it took. bytes: it had to move. flops: it had to compute.

    >>> head = Operator("lm_head", calls=1, seconds=0.01, bytes=100_000_000, flops=50_000_000)
    >>> head.least_seconds(bandwidth=20e9, flops_per_second=100e9)
    0.005
    """

    name: str
    calls: int
    seconds: float
    bytes: int = 0
    flops: int = 0

    def least_seconds(self, bandwidth: float, flops_per_second: float) -> float:
        """What a machine needs for it at least, which moves and computes at the same time."""
        return max(self.bytes / bandwidth, self.flops / flops_per_second)


class Watch:
    """Gathers what the operators of one step did, in the order in which each came first.

    clock: gives seconds, as `time.perf_counter` does.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        # spent on watching itself, which is no part of the step
        self.own_seconds = 0.0
        self._inside = False
        self._sums: dict[str, list] = {}

    def operators(self) -> list[Operator]:
        """All that ran so far."""
        return [Operator(name, *sums) for name, sums in self._sums.items()]

    def around(self, operator: Callable, describe: Callable[..., tuple[str, int, int]],
               ) -> Callable:
        """That operator, watched. Inside of another one it counts as a part of that one.

        describe: takes the operator's arguments, gives its name, its bytes and its FLOPs.
        """
        @functools.wraps(operator)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._inside:
                return operator(*arguments, **options)
            self._inside = True
            started = self.clock()
            try:
                result = operator(*arguments, **options)
            finally:
                ended = self.clock()
                self._inside = False
            name, moved, flops = describe(*arguments, **options)
            sums = self._sums.setdefault(name, [0, 0.0, 0, 0])
            for place, amount in enumerate((1, ended - started, moved, flops)):
                sums[place] += amount
            self.own_seconds += self.clock() - ended
            return result
        return watched


class WatchedCache:
    """A cache whose `attend` is watched.

    starts, counts: (B,) the tokens of each sequence before the step, and those of the step.
    """

    def __init__(self, cache: Cache, watch: Watch, config: ModelConfig, starts: Sequence[int],
                 counts: Sequence[int]):
        def describe(layer: int, q: np.ndarray, k: np.ndarray,
                     v: np.ndarray) -> tuple[str, int, int]:
            pairs, tokens = attended(starts, counts, config.window(layer))
            kept = k[0].size if config.latent is not None else k[0].size + v[0].size
            return (ATTENTION, tokens * kept * k.itemsize,
                    2 * q.shape[1] * (q.shape[2] + v.shape[2]) * pairs)
        self.attend = watch.around(cache.attend, describe)


def attended(starts: Sequence[int], counts: Sequence[int],
             window: int | None) -> tuple[int, int]:
    """What attention cannot do without: pairs of a query and a key that it may see, and tokens
    whose keys and values are read or written.

    >>> attended([2], [2], window=None), attended([2], [2], window=2)
    ((7, 4), (4, 3))
    """
    pairs = tokens = 0
    for start, count in zip(starts, counts):
        seen = np.arange(start + 1, start + count + 1)
        if window is not None:
            seen = np.minimum(seen, window)
        pairs += int(seen.sum())
        tokens += count + (start if window is None else min(start, window - 1)) * (count > 0)
    return pairs, tokens


class WeightNames:
    """The field of `Weights` or of a layer in which an array lies, be it a part of it."""

    def __init__(self, weights: Weights):
        names: dict[int, tuple[int, str]] = {}
        # the head comes last: where it is tied, what a product reads is the head
        for owner in (*weights.layers, weights):
            for field, array in vars(owner).items():
                if isinstance(array, np.ndarray):
                    first, end = byte_bounds(array)
                    names[first] = end, field
        self._starts = sorted(names)
        self._ends = [names[start] for start in self._starts]

    def of(self, array: np.ndarray) -> str:
        """The field's name; "product" for an array that belongs to none.

        >>> from types import SimpleNamespace
        >>> WeightNames(SimpleNamespace(layers=())).of(np.ones(3))
        'product'
        """
        address = array.__array_interface__["data"][0]
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ends[place][0]:
            return self._ends[place][1]
        return "product"


@contextmanager
def watched(watch: Watch, weights: Weights) -> Iterator[None]:
    """While this holds, the operators of all the engine's modules are watched.

    Every thread's, so nobody else may run a model meanwhile.
    """
    names = WeightNames(weights)

    def product(x: np.ndarray, weight: np.ndarray,
                bias: np.ndarray | None = None) -> tuple[str, int, int]:
        rows = x.size // x.shape[-1]
        return (names.of(weight), weight.nbytes + (0 if bias is None else bias.nbytes),
                2 * rows * weight.size)

    def norm(x: np.ndarray, weight: np.ndarray, *more: Any) -> tuple[str, int, int]:
        biases = [each for each in more if isinstance(each, np.ndarray)]
        return NORMS, sum(each.nbytes for each in (weight, *biases)), 0

    def named(name: str) -> Callable[..., tuple[str, int, int]]:
        return lambda *arguments, **options: (name, 0, 0)

    described = {layers.linear: product, layers.rms_norm: norm, layers.layer_norm: norm,
                 layers.swiglu: named("activation"), layers.gelu: named("activation"),
                 gpt_oss.limited_swiglu: named("activation"),
                 attention.apply_rope: named("rope"), moe.route: named("routing"),
                 moe.choose_experts: named("routing")}
    versions = {id(operator): watch.around(operator, describe)
                for operator, describe in described.items()}
    replaced = [(module, name, value) for module in list(sys.modules.values())
                if getattr(module, "__name__", "").split(".")[0] == "gearworks"
                for name, value in vars(module).items() if id(value) in versions]
    for module, name, operator in replaced:
        setattr(module, name, versions[id(operator)])
    try:
        yield
    finally:
        for module, name, operator in replaced:
            setattr(module, name, operator)
