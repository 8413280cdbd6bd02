"""A process of its own for code that may loop, exit or eat memory.

Lines of JSON pass between it and its parent. The parent has a `Child` of a module; that module,
run with `-m`, has the other end of its `pipes`. A child announces whatever it does before it
does it. So when nothing more comes, the parent knows what has ended or stopped it.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

THREADS = [f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")]
LAST_SECONDS = 1       # by the wall clock: what a child may take to end when nothing more comes


class Child:
    """A process that runs a module: started when told something, and again after its end.

    threads: how many the libraries of linear algebra may use in it; None leaves it to them.
    """

    def __init__(self, module: str, threads: int | None = None):
        self._module = module
        self._environment = {"PYTHONIOENCODING": "utf-8"} | (
            {} if threads is None else dict.fromkeys(THREADS, str(threads)))
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def tell(self, content: dict) -> None:
        """Send it a line. That it has ended meanwhile is found out by whoever listens."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass

    def hear(self, silence: float) -> dict | None:
        """Its next line, {} when that is nonsense; None after its end, or so many seconds."""
        try:
            line = self._lines.get(timeout=silence)
        except queue.Empty:
            return None
        if not line:
            return None
        try:
            news = json.loads(line)
        except ValueError:
            return {}
        return news if isinstance(news, dict) else {}

    def end(self) -> int | None:
        """End the process. Returns its exit code where it ended by itself, else None."""
        if self._process is None:
            return None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            code = self._process.wait(timeout=LAST_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            self._process.kill()
            self._process.wait()
        self._process = None
        return code

    def _start(self) -> None:
        self.end()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module], encoding="utf-8", errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | self._environment)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self._process.stdout, self._lines),
                         daemon=True).start()


def pipes() -> tuple[Iterator[dict], Callable[[dict], None]]:
    """In the child: what its parent tells, line by line, and a function that answers.

    What is printed is no answer.
    """
    news = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(content: dict) -> None:
        news.write(json.dumps(content) + "\n")
        news.flush()

    return map(json.loads, sys.stdin), say


def _pump(stream: TextIO, lines: "queue.SimpleQueue[str]") -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")
