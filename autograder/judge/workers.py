"""The judge's hold on workers: it starts them, reads their clocks, and ends them."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

import psutil

from autograder.judge import wire
from autograder.judge.attempt import Attempt
from autograder.judge.peer import Peer, connect
from autograder.judge.secret import SECRETS
from autograder.judge.wire import Message, WireError

MODULE = "autograder.judge.worker"
FORKING_SECONDS = 120       # by the wall clock, in which a module of the engine is loaded
FORKS = sys.platform == "linux"     # macOS has the call, and libraries that do not survive it


class WorkerEnded(BaseException):
    """The worker is gone, or talks nonsense. No `Exception`: a check takes it for no answer."""


class LoadError(Exception):
    """An attempt's code ends with an error before anything is called."""


class Worker:
    """A process with a learner's code. Use it in a `with` block, at whose end it ends."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, process: int):
        self._reader, self._writer = reader, writer
        self._process = psutil.Process(process)
        self._seconds = 0.0
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
        if "error" in told:
            raise LoadError(str(told["error"]))
        return [self._peer.take(data) for data in told["subjects"]]

    def seconds(self) -> float:
        """The processor time that it has used, with that of processes it has waited for."""
        with suppress(psutil.Error):
            times = self._process.cpu_times()
            self._seconds = (times.user + times.system + getattr(times, "children_user", 0.0)
                             + getattr(times, "children_system", 0.0))
        return self._seconds

    def end(self) -> None:
        """End it, with all processes of its group."""
        self.has_ended = True
        if hasattr(os, "killpg"):
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(psutil.Error):
            self._process.kill()

    def _alive(self, ask: Callable[[Message], Message]) -> Callable[[Message], Message]:
        def asked(request: Message) -> Message:
            try:
                return ask(request)
            except (EOFError, OSError, WireError, KeyError, TypeError) as error:
                self.has_ended = True
                raise WorkerEnded(str(error)) from error
        return asked


class Workers:
    """Starts workers, one after the other. Use it in a `with` block.

    Where forking is safe, a process that has loaded the engine forks them. Elsewhere each is a
    process that starts from nothing.
    """

    def __init__(self):
        self._forker: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *details: object) -> None:
        self._end_forker()
        self._folder.cleanup()

    def _end_forker(self) -> None:
        """End the process that forks; by itself it ends what it has forked."""
        if self._forker is None:
            return
        self._control.close()
        try:
            self._forker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._forker.kill()
            self._forker.wait()
        self._forker = self._control = None

    def start(self, module: str) -> Worker:
        """A worker for an attempt of a module of the reference, by its short name."""
        if not FORKS:
            return self._spawned()
        try:
            return self._forked(module)
        except (OSError, ValueError):       # what a learner's code can end, it may have ended
            self._end_forker()
            return self._forked(module)

    def _forked(self, module: str) -> Worker:
        if self._forker is None:
            self._control, theirs = socket.socketpair()
            self._control.settimeout(FORKING_SECONDS)
            with theirs:
                number = theirs.fileno()
                self._forker = self._process([str(number)], subprocess.DEVNULL,
                                             pass_fds=[number])
        (reading, answers), (calls, writing) = os.pipe(), os.pipe()
        try:
            request = json.dumps({"module": module}).encode()
            socket.send_fds(self._control, [request], [calls, answers])
            process = json.loads(self._line())["worker"]
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            os.close(calls)
            os.close(answers)
        return Worker(open(reading, "rb"), open(writing, "wb"), process)

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = self._control.recv(64)
            if not part:
                raise OSError("the process that forks has ended")
            line += part
        return line

    def _spawned(self) -> Worker:
        process = self._process([], subprocess.PIPE, start_new_session=True)
        return Worker(process.stdout, process.stdin, process.pid)

    def _process(self, arguments: list[str], streams: int, **more: Any) -> subprocess.Popen:
        """A Python that runs the worker's module, in a folder of its own, without secrets."""
        environment = {name: value for name, value in os.environ.items()
                       if name not in SECRETS}
        places = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places))
        environment["PYTHONHASHSEED"] = "0"         # sets are in the same order in every run
        return subprocess.Popen([sys.executable, "-P", "-m", MODULE, *arguments],
                                stdin=streams, stdout=streams, stderr=subprocess.DEVNULL,
                                env=environment, cwd=self._folder.name, **more)
