"""Several threads that run one step together.

Every thread calls the same compiled function and takes its own share of the outputs. Where one
needs what the others made, all meet at a `barrier`. A step has hundreds of such places and
takes a few milliseconds, so who waits there does not go to sleep: it looks again and again, and
lets others have the processor only when it has waited for long.
"""

import os
import threading
import weakref
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from gearworks.kernels.cpu.compiling import kernel, part_of_another

# What threads share: how many have arrived, how often all have met, whether waiting is over,
# how many steps have begun, and how many shares of steps are finished. Each has a cache line.
ARRIVED, MEETINGS, ABANDONED, STEPS, FINISHED, MEETING_WORDS = 0, 8, 16, 24, 32, 40
LOOKS = 400_000                 # some milliseconds
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


@kernel
def changes(meeting, word, before, looks):
    """Look at a word until it is no longer what it was; false after so many looks."""
    for _ in range(looks):
        if atomic_load(meeting, word) != before:
            return True
    return False


@kernel
def count_up(meeting, word):
    """Add one to a word, for all to see."""
    atomic_add(meeting, word, 1)


class Shared:
    """What a team's threads know: the step to run, and how it goes.

    A thread that has nothing to do looks for the next step for `LOOKS` looks, since a text's
    tokens follow each other closely, and then sleeps.
    """

    def __init__(self):
        self.meeting = np.zeros(MEETING_WORDS, np.int64)
        self.begun = threading.Condition()
        self.job: tuple[Callable, tuple] | None = None
        self.error: BaseException | None = None

    def begin(self, job: tuple[Callable, tuple] | None) -> None:
        """Let all other threads run a step; None ends them."""
        with self.begun:
            self.job = job
            count_up(self.meeting, STEPS)
            self.begun.notify_all()

    def work(self, part: int) -> None:
        """What a thread does until it is ended."""
        steps = 0
        while True:
            if not changes(self.meeting, STEPS, steps, LOOKS):
                with self.begun:
                    self.begun.wait_for(lambda: self.meeting[STEPS] != steps)
            steps += 1
            if self.job is None:
                return
            step, arguments = self.job
            try:
                step(*arguments, part)
            except BaseException as error:
                self.error = error
                self.meeting[ABANDONED] = 1
            finally:
                count_up(self.meeting, FINISHED)

    def settle(self, others: int) -> None:
        """Wait until so many threads have finished all steps that have begun."""
        while (now := int(self.meeting[FINISHED])) < others * int(self.meeting[STEPS]):
            changes(self.meeting, FINISHED, now, LOOKS)


class Team:
    """The threads of one model. One step runs at a time."""

    def __init__(self, threads: int):
        self.size = threads
        self._shared = Shared()
        self._lock = threading.Lock()
        for part in range(1, threads):
            threading.Thread(target=self._shared.work, args=(part,), daemon=True,
                             name=f"gearworks-kernel-{part}").start()
        weakref.finalize(self, self._shared.begin, None)

    def run(self, step: Callable, *arguments) -> None:
        """Call `step(*arguments, meeting, parts, part)` in every thread, and wait for all.

        An interrupt that comes in between ends the waiting of those who have begun; what they
        wrote then means nothing.
        """
        shared = self._shared
        with self._lock:
            arguments = (*arguments, shared.meeting, self.size)
            try:
                if self.size > 1:
                    shared.begin((step, arguments))
                step(*arguments, 0)
                shared.settle(self.size - 1)
            except BaseException:
                shared.meeting[ABANDONED] = 1
                self._recover()
                raise
            if shared.error is not None:
                error, shared.error = shared.error, None
                self._recover()
                raise error

    def _recover(self) -> None:
        """Wait for threads that nobody waits for any more, however often Ctrl-C is pressed."""
        while True:
            try:
                with self._shared.begun:             # it may not have been said
                    self._shared.begun.notify_all()
                self._shared.settle(self.size - 1)
                break
            except KeyboardInterrupt:
                continue
        for word in (ARRIVED, MEETINGS, ABANDONED):
            self._shared.meeting[word] = 0
        self._shared.error = None


def default_threads() -> int:
    """One for each core that this process may use, or what OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
