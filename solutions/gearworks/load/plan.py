"""How many replicas of a model a load needs, by chapter 1's arithmetic. Nothing is measured.

A replica is a machine, or several that hold one copy of the weights together. It runs out of
memory, of which every user's keys and values take their share, or of speed: the more users
share a step, the longer each of them waits for the next token.
Left out on purpose: prompts that are computed between the steps, what a framework reserves for
itself, and the peaks of a load. A real engine reaches a share of the roofline only; what share,
a load test tells (`utilisation`), and `speed` divided by it is what to plan with.
"""

import math
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from gearworks.accounting import (ModelShape, bytes_moved, forward_flops, memory_bytes,
                                  roofline_tokens_per_second)
from gearworks.errors import ModelError
from gearworks.serving.record import StepRecord


@dataclass(frozen=True)
class Machine:
    """What one replica runs on: bytes of memory, bytes a second between memory and processor,
    FLOPs a second at best; of all its parts together."""

    memory: float
    bandwidth: float
    flops_per_second: float


def users_at_a_time(requests_per_second: float, seconds: float) -> float:
    """How many requests are on their way, when each of them takes so many seconds.

    Source: Little 1961, "A Proof for the Queuing Formula L = λW".

    >>> users_at_a_time(2.5, 20.0)
    50.0
    """
    return requests_per_second * seconds


def users_by_memory(shape: ModelShape, machine: Machine, tokens: int, dtype: str = "float16",
                    cache_dtype: str = "float16") -> int:
    """How many users have room beside the weights, each with the cache of so many tokens.

    Raises ModelError when not even the weights have.

    >>> from gearworks.accounting import SHAPES
    >>> four = Machine(memory=4 * 80e9, bandwidth=4 * 2.0e12, flops_per_second=4 * 312e12)
    >>> users_by_memory(SHAPES["Llama-2-70B"], four, tokens=2048)
    271
    """
    needed = memory_bytes(shape, dtype, tokens, cache_dtype)
    left = machine.memory - needed["weights"]
    if left < 0:
        raise ModelError("cannot serve this model there",
                         f"its weights take {needed['weights'] / 1e9:.0f} GB, and the machine "
                         f"has {machine.memory / 1e9:.0f}",
                         "more machines for one replica, or a smaller dtype")
    return int(left // needed["kv_cache"])


def users_by_speed(shape: ModelShape, machine: Machine, tokens: int, speed: float,
                   dtype: str = "float16", cache_dtype: str = "float16",
                   most: int = 100_000) -> int:
    """How many users share a replica, up to `most`, when each wants `speed` tokens a second.

    tokens: what each has in the cache while the next one is computed.

    >>> from gearworks.accounting import SHAPES
    >>> four = Machine(memory=4 * 80e9, bandwidth=4 * 2.0e12, flops_per_second=4 * 312e12)
    >>> [users_by_speed(SHAPES["Llama-2-70B"], four, 2048, speed) for speed in (20, 50, 60)]
    [391, 33, 0]
    """
    def too_slow(users: int) -> bool:
        together = roofline_tokens_per_second(
            shape, dtype, bandwidth=machine.bandwidth, batch=users, past_tokens=tokens,
            flops_per_second=machine.flops_per_second, cache_dtype=cache_dtype)
        return together / users < speed
    # Nobody gets faster by company, so the numbers of users that are too many come last
    return bisect(range(1, most + 1), False, key=too_slow)


def replicas(shape: ModelShape, machine: Machine, users: int, tokens: int, speed: float,
             dtype: str = "float16", cache_dtype: str = "float16") -> int:
    """How many replicas so many users need, with `tokens` in the cache and `speed` each.

    Raises ModelError when a replica cannot serve a single one.

    Fifty users of 2,048 tokens on a model of 70 billion parameters, whose cache takes 33.6 GB,
    and the same model as it were without grouped queries, with 268 GB:

    >>> from dataclasses import replace
    >>> from gearworks.accounting import SHAPES
    >>> grouped = SHAPES["Llama-2-70B"]
    >>> plain = replace(grouped, num_key_value_heads=grouped.num_attention_heads)
    >>> [round(memory_bytes(shape, "float16", 50 * 2048)["kv_cache"] / 1e9, 1)
    ...  for shape in (grouped, plain)]
    [33.6, 268.4]
    >>> four = Machine(memory=4 * 80e9, bandwidth=4 * 2.0e12, flops_per_second=4 * 312e12)
    >>> [replicas(shape, four, users=50, tokens=2048, speed=20) for shape in (grouped, plain)]
    [1, 2]
    """
    fitting = min(users_by_memory(shape, machine, tokens, dtype, cache_dtype),
                  users_by_speed(shape, machine, tokens, speed, dtype, cache_dtype))
    if fitting < 1:
        raise ModelError("cannot serve this load there",
                         f"a replica has no room for one user of {tokens} tokens, or no "
                         f"{speed:g} tokens a second for one",
                         "more or faster machines for one replica, or a smaller dtype")
    return math.ceil(users / fitting)


def utilisation(tokens_per_second: float, shape: ModelShape, machine: Machine, users: int,
                tokens: int, dtype: str = "float16", cache_dtype: str = "float16") -> float:
    """The share of the roofline that was reached, when so many users shared each step.

    >>> from gearworks.accounting import SHAPES
    >>> laptop = Machine(memory=16e9, bandwidth=12.5e9, flops_per_second=1e11)
    >>> round(utilisation(11.6, SHAPES["SmolLM2-135M"], laptop, 1, 0, "float32"), 2)
    0.5
    """
    return tokens_per_second / roofline_tokens_per_second(
        shape, dtype, bandwidth=machine.bandwidth, batch=users, past_tokens=tokens,
        flops_per_second=machine.flops_per_second, cache_dtype=cache_dtype)


def least_seconds(records: Iterable[StepRecord], shape: ModelShape, machine: Machine,
                  dtype: str = "float32", cache_dtype: str = "float32") -> float:
    """What a perfect machine would take for the steps that an engine has done.

    In each step it reads the weights once, and every sequence's keys and values; meanwhile it
    computes the step's tokens, and a row of logits for each sequence. The share of the roofline
    that an engine reached is this, divided by the seconds that its steps took.

    >>> from gearworks.accounting import SHAPES
    >>> from gearworks.serving.record import Row
    >>> laptop = Machine(memory=16e9, bandwidth=12.5e9, flops_per_second=1e11)
    >>> one, other = (Row(name, 49, 1, 0, False, ()) for name in ("a/0", "b/0"))
    >>> steps = [StepRecord(0, 0.1, 0.1, (one,)), StepRecord(1, 0.1, 0.1, (other,))]
    >>> together = [StepRecord(0, 0.1, 0.1, (one, other))]
    >>> [round(least_seconds(run, SHAPES["SmolLM2-135M"], laptop), 3)
    ...  for run in (steps, together)]
    [0.086, 0.043]
    """
    seconds = 0.0
    for record in records:
        flops = sum(forward_flops(shape, row.count, row.start) for row in record.rows)
        tokens = sum(row.start + row.count for row in record.rows)
        moved = bytes_moved(shape, dtype, new_tokens=tokens, cache_dtype=cache_dtype)
        seconds += max(flops / machine.flops_per_second, moved / machine.bandwidth)
    return seconds
