"""Time limits for code that may never end, on every system and without a process of its own.

The clock is processor time, so that a busy machine changes no grade; a wall clock that is far
more generous stands behind it, for code that waits for ever. What it says may be the machine's
fault, so it has an error of its own. What no limit inside a process can stop is one long call
into C and code that catches everything in a loop; those need a process that can be killed (see
`autograder.judge.worker`).
"""

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WALL_PER_CPU = 15           # seconds by the wall clock behind each second of processor time
POLL = 0.05                 # seconds between two looks at the clock


class TimeLimit(BaseException):
    """The limit was reached. No `Exception`: the code's own `except Exception` lets it pass."""


class WallLimit(TimeLimit):
    """The wall clock's limit was reached: code that waits, or a machine that is overloaded."""


@contextmanager
def time_limit(seconds: float, *, clock: Callable[[], float] = time.process_time,
               also: Callable[[], None] | None = None) -> Iterator[None]:
    """End the block with TimeLimit once it has used this much processor time.

    clock: whose time it is, in seconds; this process's, unless another one does the work.
    also: called (in another thread) just before, to end what the block may be waiting for.
    Raises WallLimit where the wall clock came first. Limits do not nest.

    >>> try:
    ...     with time_limit(0.1):
    ...         while True:
    ...             pass
    ... except TimeLimit:
    ...     print("stopped")
    stopped
    """
    limited = threading.get_ident()
    is_main = threading.current_thread() is threading.main_thread()
    finished, expired, guard = threading.Event(), threading.Event(), threading.Lock()
    kind: type[TimeLimit] = TimeLimit

    def watch() -> None:
        nonlocal kind
        processor, wall = clock(), time.monotonic()
        while not finished.wait(POLL):
            is_late = time.monotonic() - wall > seconds * WALL_PER_CPU
            if not is_late and clock() - processor <= seconds:
                continue
            with guard:                 # once `finished` is set, nothing may be raised any more
                if finished.is_set():
                    return
                if not expired.is_set():
                    kind = WallLimit if is_late else TimeLimit
                    expired.set()
                    if also is not None:
                        also()
                elif is_main and hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(limited, signal.SIGINT)     # wakes what sleeps or waits
                _raise_in(limited, TimeLimit)
            finished.wait(10 * POLL)                  # again, should the code have swallowed it

    watcher = threading.Thread(target=watch, daemon=True, name="time-limit")
    watcher.start()
    try:
        try:
            yield
        finally:
            while not finished.is_set():
                try:
                    with guard:
                        finished.set()
                except TimeLimit:           # raised in these very lines: still to be told below
                    pass
            if expired.is_set():
                _take_back(limited)
    except BaseException:                 # a lock that was interrupted raises errors of its own
        if expired.is_set():
            raise kind from None
        raise
    if expired.is_set():
        raise kind


def _take_back(thread: int) -> None:
    """Drop the TimeLimit that is still to be raised in this thread, the caller's own.

    Setting none in its place would leave the interpreter's flag for it up, and in CPython 3.11
    the next function that a profiler or a debugger watches would never begin. So one is raised
    here, and caught.
    """
    try:
        _raise_in(thread, TimeLimit)
        while True:
            pass
    except TimeLimit:
        pass


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
