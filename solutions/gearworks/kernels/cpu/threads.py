"""Several threads that run one step together.

Every thread calls the same compiled function and takes its own share of the outputs. Where one
needs what the others made, all meet at a `barrier`. A step has hundreds of such places and
takes a few milliseconds, so who waits there does not go to sleep: it looks again and again, and
lets others have the processor only when it has waited for long.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from gearworks.kernels.cpu.compiling import part_of_another

# What threads share: who has arrived, how often all have met, and whether waiting is over. Each
# has a cache line of its own.
ARRIVED, MEETINGS, ABANDONED, MEETING_WORDS = 0, 8, 16, 24
PATIENCE = 20_000               # looks, some 100 µs, before another program gets the processor

_WORD = ir.IntType(64)


def _address(context, builder, array_type, array, index):
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def atomic_add(typing, array, index, amount):
    """Add to an element; returns what it was. No other thread comes in between."""
    def generate(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], *arguments[:2])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")
    return types.int64(array, types.intp, types.int64), generate


@intrinsic
def atomic_load(typing, array, index):
    """An element as it is now, and what its writer wrote before it."""
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_address(context, builder, signature.args[0], *arguments),
                                   "acquire", 8)
    return types.int64(array, types.intp), generate


@intrinsic
def atomic_store(typing, array, index, value):
    """Set an element, for all to see, after all that was written before."""
    def generate(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()
    return types.void(array, types.intp, types.int64), generate


@intrinsic
def let_others_run(typing):
    """Offer the processor to another thread, of any program."""
    name, result = ("SwitchToThread" if os.name == "nt" else "sched_yield"), ir.IntType(32)

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(result, [])
        existing = builder.module.globals.get(name)
        builder.call(existing or ir.Function(builder.module, function, name), [])
        return context.get_dummy_value()
    return types.void(), generate


@part_of_another
def barrier(meeting, parts):
    """Wait until all threads are here.

    meeting: (MEETING_WORDS,) int64, the same for all; parts: how many they are.
    """
    if parts == 1:
        return
    before = atomic_load(meeting, MEETINGS)
    if atomic_add(meeting, ARRIVED, 1) == parts - 1:
        atomic_store(meeting, ARRIVED, 0)
        atomic_add(meeting, MEETINGS, 1)
        return
    looks = 0
    while atomic_load(meeting, MEETINGS) == before and not atomic_load(meeting, ABANDONED):
        looks += 1
        if looks > PATIENCE:
            let_others_run()


@part_of_another
def share(count, part, parts):
    """Which of `count` things belong to a thread: from the first up to the second number."""
    return count * part // parts, count * (part + 1) // parts


class Team:
    """The threads of one model. One step runs at a time."""

    def __init__(self, threads: int):
        self.size = threads
        self.meeting = np.zeros(MEETING_WORDS, np.int64)
        self._others = (ThreadPoolExecutor(threads - 1, thread_name_prefix="gearworks-kernel")
                        if threads > 1 else None)
        self._lock = threading.Lock()

    def run(self, step: Callable, *arguments) -> None:
        """Call `step(*arguments, meeting, part, parts)` in every thread, and wait for all.

        An interrupt that comes in between ends the waiting of those who have begun; what they
        wrote then means nothing.
        """
        with self._lock:
            others = []
            try:
                for part in range(1, self.size):
                    others.append(self._others.submit(step, *arguments, self.meeting, part,
                                                      self.size))
                step(*arguments, self.meeting, 0, self.size)
                for other in others:
                    other.result()
            except BaseException:
                self.meeting[ABANDONED] = 1
                self._settle(others)
                raise

    def _settle(self, others) -> None:
        """Wait for threads that nobody waits for any more, however often Ctrl-C is pressed."""
        while not all(other.done() or other.cancel() for other in others):
            try:
                for other in others:
                    other.exception()
            except (KeyboardInterrupt, Exception):
                continue
        self.meeting[:] = 0


def default_threads() -> int:
    """One for each core that this process may use, or what OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
