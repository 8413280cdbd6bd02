"""A worker as the judge sees it: its subjects, its clock, and its end."""

import dataclasses
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import psutil

from autograder.judge import wire
from autograder.judge.attempt import Attempt
from autograder.judge.peer import Peer, connect
from autograder.judge.wire import Message

LONGEST_ERROR = 500         # characters


class WorkerEnded(BaseException):
    """The worker is gone, or talks nonsense. No `Exception`: a check takes it for no answer."""


class LoadError(Exception):
    """An attempt's code ends with an error before anything is called."""


class Hold(Protocol):
    """What holds a worker's process. Neither call raises, and both may come from any thread."""

    def seconds(self) -> float:
        """The processor time that the worker has used so far, also after its end."""

    def end(self) -> None:
        """End it, with all that it has started. Again does no harm."""


class ProcessHold:
    """Of a process of this machine, which leads a group."""

    def __init__(self, process: int):
        self._process = psutil.Process(process)
        self._seconds = 0.0

    def seconds(self) -> float:
        """Its processor time, with that of processes it has waited for."""
        with suppress(psutil.Error):
            times = self._process.cpu_times()
            self._seconds = (times.user + times.system + getattr(times, "children_user", 0.0)
                             + getattr(times, "children_system", 0.0))
        return self._seconds

    def end(self) -> None:
        """End it, with all processes of its group."""
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(psutil.Error):
            self._process.kill()


class Worker:
    """A process with a learner's code. Use it in a `with` block, at whose end it ends.

    given: a folder that it reads, as another user perhaps; what checks put there is made
    readable, since some libraries save files for their owner alone.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, hold: Hold,
                 given: Path | None = None):
        self._reader, self._writer, self._hold, self._given = reader, writer, hold, given
        self._peer = Peer(open_objects=False)
        connect(self._peer, reader, writer)
        self._peer.ask = self._alive(self._peer.ask)
        self.has_ended = False

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *details: object) -> None:
        self.end()
        for stream in (self._reader, self._writer):
            with suppress(OSError):         # it cannot be told the last words any more
                stream.close()

    def lend(self, attempt: Attempt) -> list[Any]:
        """What stands for the subjects of an attempt, which the worker loads.

        Raises LoadError when its code does not run, and WorkerEnded.
        """
        def deliver(request: Message) -> Message:
            wire.write(self._writer, request)
            return wire.read(self._reader)

        told = self._alive(deliver)(Message(dataclasses.asdict(attempt))).data
        try:
            if "error" in told:
                raise LoadError(str(told["error"])[:LONGEST_ERROR])
            return [self._peer.take(data) for data in told["subjects"]]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.has_ended = True
            raise WorkerEnded(str(error)) from error

    def seconds(self) -> float:
        """The processor time that it has used, with that of processes it has waited for."""
        return self._hold.seconds()

    def end(self) -> None:
        """End it, with all processes that it has started."""
        self.has_ended = True
        self._hold.end()

    def _alive(self, ask: Callable[[Message], Message]) -> Callable[[Message], Message]:
        def asked(request: Message) -> Message:
            try:
                if self._given is not None:
                    _make_readable(self._given)
                return ask(request)
            except Exception as error:      # whatever nonsense it has said
                self.has_ended = True
                raise WorkerEnded(str(error)) from error
        return asked


def _make_readable(folder: Path) -> None:
    if os.listdir(folder):                  # before each of many thousand calls, it is empty
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
