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


def in_a_copy(work: Callable[[], None], seconds: float, wall_seconds: float) -> bool:
    """Do the work, and whether it came to its end.

    seconds: of processor time; wall_seconds: by the wall clock. The system ends a copy that
    takes longer, whatever it is in the middle of. There is no limit where there is no fork.
    """
    if not CAN_FORK:
        work()
        return True
    gc.freeze()                 # so that the copy's collector leaves the memory of both shared
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == 0
    try:
        _limit(seconds, wall_seconds)
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _limit(seconds: float, wall_seconds: float) -> None:
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(wall_seconds) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
    try:
        with open("/proc/self/statm", encoding="ascii") as status:
            used = int(status.read().split()[0]) * resource.getpagesize()
    except OSError:                                    # which only Linux tells in this way
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
