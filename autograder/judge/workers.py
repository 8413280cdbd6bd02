"""The judge's supply of workers: it starts them, in a sandbox or without one, and ends them."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autograder.judge.guard import Guard
from autograder.judge.holds import LoadError, ProcessHold, Worker, WorkerEnded
from autograder.judge.secret import SECRETS
from autograder.sandbox.bubblewrap import Bubblewrap
from autograder.sandbox.choice import NotSandboxed, Sandbox

__all__ = ["FORKS", "LoadError", "Worker", "WorkerEnded", "Workers"]

MODULE = "autograder.judge.worker"
FORKING_SECONDS = 120       # by the wall clock, in which a module of the engine is loaded
FORKS = sys.platform == "linux"     # macOS has the call, and libraries that do not survive it


class Workers:
    """Starts workers, one after the other. Use it in a `with` block.

    sandbox: what the workers are in (see `autograder.sandbox.choice`); None for code of whoever
    runs this, on their own machine. Where forking is safe, a process that has loaded the engine
    forks them. Elsewhere each is a process that starts from nothing.
    """

    def __init__(self, sandbox: Sandbox | None = None):
        self._sandbox = sandbox
        self._guard: Guard | None = None
        self._forker: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.given: Path | None = None      # where workers read what checks give them as files
        if sandbox is not None:
            self.given = Path(self._folder.name, "given")
            self.given.mkdir()
            self.given.chmod(0o755)         # workers are other users; nobody else gets there

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *details: object) -> None:
        self._end_forker()
        self._end_guard()
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
        """A worker for an attempt of a module of the reference, by its short name.

        One that was started before must have ended. Raises NotSandboxed where the sandbox does
        not start; that says nothing about anybody's code.
        """
        if isinstance(self._sandbox, Bubblewrap):
            return self._guarded(module)
        if self._sandbox is not None:
            return self._contained()
        if not FORKS:
            return self._spawned()
        try:
            return self._forked(module)
        except (OSError, ValueError):       # what a learner's code can end, it may have ended
            self._end_forker()
            return self._forked(module)

    def process_namespace(self) -> str:
        """The name of the namespace that all processes of a sandbox are in; "" without one."""
        return "" if self._guard is None else self._guard.process_namespace()

    def _guarded(self, module: str) -> Worker:
        """A worker from the sandbox that is there, else from a new one."""
        for _ in range(2):          # an earlier worker may have left files: that one closes
            if self._guard is None:
                self._guard = Guard(self._sandbox, self.given)
            try:
                return self._guard.start(module)
            except (OSError, ValueError) as error:
                self._end_guard()
                why = error
        raise NotSandboxed("the sandbox does not start", str(why) or type(why).__name__,
                           "autograder doctor") from why

    def _contained(self) -> Worker:
        try:
            process, hold = self._sandbox.start(MODULE, self.given)
        except OSError as error:
            raise NotSandboxed("the sandbox does not start", str(error),
                               "autograder doctor") from error
        return Worker(process.stdout, process.stdin, hold, self.given)

    def _end_guard(self) -> None:
        if self._guard is not None:
            self._guard.end()
            self._guard = None

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
        return Worker(open(reading, "rb"), open(writing, "wb"), ProcessHold(process))

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
        return Worker(process.stdout, process.stdin, ProcessHold(process.pid))

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
