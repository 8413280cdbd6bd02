"""What else the machine did while a chapter ran: figures of a busy machine are worth little.

Around each cell whose outputs are measurements, memory is read a few times, as the benchmark
does, and while it runs, the processor time of all other programs is counted. A page says beside
such outputs which machine they come from, and that it was busy, where it was.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from html import escape
from typing import Any

import numpy as np
import psutil

from gearworks.profiling.machine import available_cores, processor_name

READ_BYTES = 2**27                    # more than most processors' caches
READS = 5                             # before a cell, and after it
# A read beside the run's fastest: below this, something else used the memory.
LEAST_READ = 0.75
MOST_OF_OTHERS = 0.15                 # of all processors


@dataclass(frozen=True)
class Moment:
    """A measured cell. read: bytes a second, the median of the reads around it. others: what
    other programs took of the processors' time while it ran, 0 to 1."""

    read: float
    others: float


@dataclass(frozen=True)
class Machine:
    """Where and when a chapter ran. read: bytes a second, the fastest in the whole run."""

    name: str
    threads: int
    day: str
    read: float


def is_busy(moment: Moment, machine: Machine) -> bool:
    """Whether the figures of a cell are not to be trusted.

    >>> machine = Machine("X", 2, "2026-01-02", read=20e9)
    >>> [is_busy(Moment(read, others), machine)
    ...  for read, others in ((19e9, 0.02), (9e9, 0.02), (19e9, 0.5))]
    [False, True, True]
    """
    return moment.read < LEAST_READ * machine.read or moment.others > MOST_OF_OTHERS


def note(moment: Moment, machine: Machine) -> str:
    """What stands below a cell's outputs, as HTML."""
    text = (f"Measured on {escape(machine.name)}, {machine.threads} threads, {machine.day}.")
    if not is_busy(moment, machine):
        return f'<p class="measured">{text}</p>'
    return (f'<p class="measured measured-busy">{text} <strong>The machine was busy:</strong> '
            f"memory was read at {moment.read / 1e9:.1f} GB/s around this cell, at "
            f"{machine.read / 1e9:.1f} at its best in the same run, and other programs took "
            f"{moment.others:.0%} of the processors' time. On a quiet machine these numbers "
            "are others.</p>")


class Watch:
    """Watches while a chapter runs. moments: of each measured cell, by its number among the
    code cells, from 0."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter,
                 read: Callable[[], float] | None = None):
        self.clock, self.moments = clock, {}
        self._read = read or _reader()
        self._reads: list[float] = []

    def before(self, number: int) -> None:
        """A measured cell is about to run."""
        self._around = self._look()
        self._began = self.clock(), *_processor_seconds()

    def after(self, number: int) -> None:
        """It has run."""
        wall = self.clock() - self._began[0]
        everybody, ours = (now - then for now, then in zip(_processor_seconds(),
                                                           self._began[1:]))
        share = (everybody - ours) / max(wall * (psutil.cpu_count() or 1), 1e-9)
        around = self._around + self._look()
        # the clocks of processes tick some hundred times a second: a short cell says nothing
        others = min(1.0, max(0.0, share)) if wall > 0.25 else 0.0
        self.moments[number] = Moment(statistics.median(around), others)

    def machine(self) -> Machine:
        """Where this was, and how fast it is at its best."""
        self._reads += [] if self._reads else self._look()
        return Machine(processor_name(), available_cores(), date.today().isoformat(),
                       max(self._reads))

    def _look(self) -> list[float]:
        reads = [self._read() for _ in range(READS)]
        self._reads += reads
        return reads


def to_metadata(watch: Watch) -> dict[str, Any]:
    """What is kept of a run, for JSON."""
    return {"machine": asdict(watch.machine()),
            "moments": {f"{number}": asdict(each) for number, each in watch.moments.items()}}


def from_metadata(told: dict[str, Any]) -> tuple[Machine, dict[int, Moment]]:
    """The same again."""
    return (Machine(**told["machine"]),
            {int(number): Moment(**each) for number, each in told["moments"].items()})


def _reader() -> Callable[[], float]:
    """A function that reads memory with all threads, and tells bytes a second."""
    threads = available_cores()
    parts = np.array_split(np.ones(READ_BYTES // 4, np.float32), threads)
    pool = ThreadPoolExecutor(threads)

    def read() -> float:
        started = time.perf_counter()
        list(pool.map(np.max, parts))
        return READ_BYTES / (time.perf_counter() - started)
    return read


def _processor_seconds() -> tuple[float, float]:
    """Seconds that processors have worked: for everybody, and for this process and those that
    it has started."""
    times = psutil.cpu_times()
    everybody = sum(getattr(times, name, 0.0) for name in
                    ("user", "nice", "system", "irq", "softirq", "steal"))
    this, ours = psutil.Process(), 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            ours += sum(process.cpu_times()[:4])        # its own, and of children that ended
        except psutil.Error:
            continue                                    # it has just ended
    return everybody, ours
