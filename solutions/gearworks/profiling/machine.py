"""What this machine does at best: how fast it reads memory, how fast it multiplies.

Measured in a moment, right where the engine is measured, since a machine is not as fast every
day, and a virtual one not every minute.
"""

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

READ_BYTES = 2**28                          # more than any processor's cache
SIDE = 1024                                 # of the matrices that are multiplied
ROUNDS = 7


@dataclass(frozen=True)
class Machine:
    """bandwidth: bytes a second between memory and processor. flops_per_second: of float32
    products. threads: that read."""

    bandwidth: float
    flops_per_second: float
    threads: int


def measure_machine(threads: int | None = None, clock: Callable[[], float] = time.perf_counter,
                    read_bytes: int = READ_BYTES, side: int = SIDE) -> Machine:
    """The best of a few rounds of reading and of multiplying.

    threads: by default as many as this process may use. Multiplying is NumPy's, with as many
    threads as its library takes.
    """
    threads = threads or available_cores()
    numbers = np.ones(read_bytes // 4, np.float32)
    parts = np.array_split(numbers, threads)
    with ThreadPoolExecutor(threads) as pool:
        # it needs no library whose threads would come on top of these
        read = _least_seconds(lambda: list(pool.map(np.max, parts)), clock)
    a, b, product = (np.ones((side, side), np.float32) for _ in range(3))
    multiplied = _least_seconds(lambda: np.matmul(a, b, out=product), clock)
    return Machine(numbers.nbytes / read, 2 * side**3 / multiplied, threads)


def available_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """What the system calls this machine's processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _least_seconds(action: Callable[[], object], clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        started = clock()
        action()
        seconds.append(clock() - started)
    return min(seconds)
