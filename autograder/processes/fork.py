"""Runs a piece of work in a copy of this process, where it can spoil nothing.

A copy costs milliseconds and has everything loaded that this process has. Where there is no
fork, as on Windows, the work is done here.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable

CAN_FORK = hasattr(os, "fork") and sys.platform != "darwin"     # whose frameworks forbid it
MEMORY = 3 * 2**30              # bytes that the work may take beyond what this process has


def in_a_copy(work: Callable[[], None]) -> bool:
    """Do the work, and whether it came to its end. It sets its own limits, by `end_after`."""
    if not CAN_FORK:
        work()
        return True
    gc.freeze()                 # so that the copy's collector leaves the memory of both shared
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    try:
        _limit_memory()
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def end_after(seconds: float, wall_seconds: float) -> None:
    """Within a copy: let the system end it after so many seconds from now.

    seconds: of processor time; wall_seconds: by the wall clock. Whatever the copy is in the
    middle of. There is no limit where there is no copy.
    """
    if not CAN_FORK:
        return
    for timer, number, limit in ((signal.ITIMER_PROF, signal.SIGPROF, seconds),
                                 (signal.ITIMER_REAL, signal.SIGALRM, wall_seconds)):
        signal.signal(number, signal.SIG_DFL)
        signal.setitimer(timer, limit)


def _limit_memory() -> None:
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as status:
            used = int(status.read().split()[0]) * resource.getpagesize()
    except OSError:                                    # which only Linux tells in this way
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
