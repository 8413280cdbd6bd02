"""The profile of a step: its operators' times, bytes and FLOPs, beside the machine's limits.

A step is run many times, watched and unwatched in turns. What is reported is the mean of the
watched ones, without the slower and the faster quarter, so the operators and what lies between
them are exactly all of that step; and the same mean of the unwatched ones, which tells what
watching costs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from gearworks.errors import ModelError
from gearworks.families.layouts import Weights
from gearworks.kv_cache import Cache
from gearworks.profiling.machine import Machine
from gearworks.profiling.operators import BETWEEN, Operator, Watch, WatchedCache, watched
from gearworks.serving.engine import BLOCK_SIZE
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache


@dataclass(frozen=True)
class Work:
    """What one step has to do: for each of `batch` sequences, `new_tokens` that come after
    `past_tokens` in the cache; logits of the last one of each.

    >>> Work(batch=8, past_tokens=128).name, Work(new_tokens=512, past_tokens=0).name
    ('decode, batch 8, after 128 tokens', 'prefill of 512 tokens')
    """

    batch: int = 1
    new_tokens: int = 1
    past_tokens: int = 0

    @property
    def name(self) -> str:
        """What it is, in words."""
        if self.new_tokens == 1:
            return f"decode, batch {self.batch}, after {self.past_tokens:,} tokens"
        after = f" after {self.past_tokens:,}" if self.past_tokens else ""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"prefill of {self.new_tokens:,} tokens{after}{batch}"


@dataclass(frozen=True)
class Profile:
    """A step, operator by operator; the last one is what lies between them.

    unwatched_seconds: the step's without a watch.
    """

    work: Work
    operators: tuple[Operator, ...]
    unwatched_seconds: float
    machine: Machine

    @property
    def whole(self) -> Operator:
        """The step as if it were one operator."""
        return Operator("all", sum(each.calls for each in self.operators),
                        sum(each.seconds for each in self.operators),
                        sum(each.bytes for each in self.operators),
                        sum(each.flops for each in self.operators))

    def share_of_roof(self, operator: Operator) -> float:
        """The least time that the machine needs for an operator, as a share of what it took.

        Above 1 for what lies in the processor's cache, which is faster than memory.
        """
        if not operator.seconds:
            return 0.0
        return operator.least_seconds(self.machine.bandwidth,
                                      self.machine.flops_per_second) / operator.seconds

    def table(self) -> str:
        """The profile as text."""
        whole = self.whole
        rows = [("operator", "calls", "ms", "share", "MB", "GB/s", "MFLOP", "GFLOP/s",
                 "of the roof")]
        for each in (*self.operators, whole):
            per_second = [amount / each.seconds / 1e9 if each.seconds else 0
                          for amount in (each.bytes, each.flops)]
            numbers = [(f"{each.bytes / 1e6:,.2f}", f"{per_second[0]:.1f}"),
                       (f"{each.flops / 1e6:,.1f}", f"{per_second[1]:.1f}")]
            moved, computed = (pair if amount else ("", "") for pair, amount
                               in zip(numbers, (each.bytes, each.flops)))
            roof = self.share_of_roof(each)
            rows.append((each.name, f"{each.calls:,}" if each.calls else "",
                         f"{1e3 * each.seconds:.2f}", f"{each.seconds / whole.seconds:.0%}",
                         *moved, *computed, f"{roof:.0%}" if roof else ""))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join([row[0].ljust(widths[0]),
                            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
                 .rstrip() for row in rows]
        tokens = self.work.batch * self.work.new_tokens / whole.seconds
        title = (f"{self.work.name}: {1e3 * whole.seconds:.1f} ms, {tokens:,.0f} tokens/s "
                 f"({1e3 * self.unwatched_seconds:.1f} ms unwatched)")
        return "\n".join([title, *lines[:-1], "-" * max(map(len, lines)), lines[-1]])

    def as_json(self) -> dict[str, Any]:
        """The profile for JSON: seconds, bytes, FLOPs, and shares of the roof."""
        def entry(each: Operator) -> dict[str, Any]:
            return vars(each) | {"share_of_roof": self.share_of_roof(each)}
        return {"work": vars(self.work) | {"name": self.work.name},
                "unwatched_seconds": self.unwatched_seconds, "step": entry(self.whole),
                "operators": [entry(each) for each in self.operators]}


def limits(machine: Machine) -> str:
    """What the machine allows, in one line."""
    threads = f"{machine.threads} thread{'s' * (machine.threads > 1)}"
    return (f"This machine reads {machine.bandwidth / 1e9:.1f} GB/s from memory ({threads}) "
            f"and computes {machine.flops_per_second / 1e9:,.0f} GFLOP/s.")


def profile(model: Any, work: Work, machine: Machine, rounds: int = 12,
            clock: Callable[[], float] = time.perf_counter) -> Profile:
    """Run a step again and again; see this module.

    model: a `gearworks.model.Model`, or a `kernels.cpu.model.CompiledModel`, whose step is one
    call and is watched by running its program one instruction at a time.
    Raises ModelError for another engine, and for work that the model's context is too short
    for.
    """
    compiled = hasattr(model, "arena")
    weights = getattr(model, "weights", None)
    if not compiled and not (isinstance(weights, Weights)
                             and isinstance(weights.embed_tokens, np.ndarray)):   # no tensors
        raise ModelError("cannot profile this engine",
                         f"a {type(model).__name__} has no operators that can be watched",
                         "profile the NumPy engine, or the compiled one")
    config, total = model.config, work.past_tokens + work.new_tokens
    if total > config.max_position_embeddings:
        raise ModelError("cannot profile this step",
                         f"its sequences have {total:,} tokens, and the model was made for "
                         f"{config.max_position_embeddings:,}", "profile a shorter one")
    rng = np.random.default_rng(0)
    ids = rng.integers(config.vocab_size, size=work.batch * work.new_tokens)
    positions = np.tile(np.arange(work.past_tokens, total), work.batch)
    last = np.arange(1, work.batch + 1) * work.new_tokens - 1
    cache = _filled(model, work, rng)

    def unwatched() -> float:
        started = clock()
        model.forward(ids, positions, cache(), last)
        return clock() - started

    def step() -> list[Operator]:
        if not compiled:
            return _watched_step(model, work, (ids, positions, last), cache(), clock)
        from gearworks.profiling.compiled import step_operators

        return step_operators(model, (ids, positions, last), cache(),
                              [work.past_tokens] * work.batch, [work.new_tokens] * work.batch,
                              clock)

    unwatched()                                             # the first one reserves memory
    plain, steps = [], []
    for _ in range(rounds):
        plain.append(unwatched())
        steps.append(step())
    return Profile(work, tuple(_middle(steps)), fmean(_middle_half(plain)), machine)


def _filled(model: Any, work: Work, rng: np.random.Generator) -> Callable[[], Cache]:
    """A function that gives the cache as it is before the step, the same memory each time."""
    config, total = model.config, work.past_tokens + work.new_tokens
    starts = [work.past_tokens] * work.batch
    if work.batch == 1:
        single = model.new_cache(total)

        def cache() -> Cache:
            single.truncate(work.past_tokens)
            return single
        before: Cache = single
    else:
        blocks = -(-total // BLOCK_SIZE)
        tables = np.arange(work.batch * blocks).reshape(work.batch, blocks).tolist()
        memory = PagedKVCache(config, work.batch * blocks, BLOCK_SIZE)

        def cache() -> Cache:
            return PagedBatch(memory, tables, starts, [work.new_tokens] * work.batch)
        before = PagedBatch(memory, tables, [0] * work.batch, starts)
    if work.past_tokens:
        model.forward(rng.integers(config.vocab_size, size=work.batch * work.past_tokens),
                      np.tile(np.arange(work.past_tokens), work.batch), before, [-1])
    return cache


def _watched_step(model: Any, work: Work, inputs: Sequence[np.ndarray], cache: Cache,
                  clock: Callable[[], float]) -> list[Operator]:
    """One step's operators, and as the last one the time between them."""
    watch = Watch(clock)
    ids, positions, last = inputs
    seen = WatchedCache(cache, watch, model.config, [work.past_tokens] * work.batch,
                        [work.new_tokens] * work.batch)
    with watched(watch, model.weights):
        started = clock()
        model.forward(ids, positions, seen, last)
        seconds = clock() - started - watch.own_seconds
    operators = watch.operators()
    between = seconds - sum(each.seconds for each in operators)
    return [*operators, Operator(BETWEEN, 0, between)]


def _middle(steps: Sequence[Sequence[Operator]]) -> list[Operator]:
    """The mean of steps, without the slower and the faster quarter of them."""
    kept = _middle_half(steps, key=lambda step: sum(each.seconds for each in step))
    return [Operator(same[0].name, same[0].calls, fmean(each.seconds for each in same),
                     same[0].bytes, same[0].flops) for same in zip(*kept, strict=True)]


def _middle_half(values: Sequence, key: Callable | None = None) -> list:
    ordered = sorted(values, key=key)
    cut = len(ordered) // 4
    return ordered[cut:len(ordered) - cut]
