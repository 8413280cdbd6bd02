"""The judge's side of a sandbox in which a warden forks workers."""

import json
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from autograder.judge.holds import Worker
from autograder.sandbox.bubblewrap import Bubblewrap, worker_identity
from autograder.sandbox.limits import MEMORY

WARDEN = "autograder.judge.warden"
STARTING_SECONDS = 120      # by the wall clock, in which Python and the engine are loaded
ANSWER_SECONDS = 30         # and in which a warden answers, however busy the machine is
LAST_SECONDS = 2            # and in which it ends once nobody asks any more


class Guard:
    """A running sandbox. given: a folder that workers read. Raises OSError if none starts."""

    def __init__(self, sandbox: Bubblewrap, given: Path):
        self._given = given
        self._workers = 0                   # that were started; the last number is the one's
        self._lock = threading.RLock()      # the clock is read by a thread of its own
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = sandbox.start(WARDEN, str(worker_identity()),
                                              keep=theirs.fileno(), given=given)
            except BaseException:
                self._control.close()
                raise

    def start(self, module: str) -> Worker:
        """A worker for a module of the reference. Raises OSError, ValueError: it has ended."""
        self._workers += 1
        (reading, answers), (calls, writing) = os.pipe(), os.pipe()
        try:
            self.ask({"op": "start", "module": module, "worker": self._workers},
                     [calls, answers], STARTING_SECONDS)
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            os.close(calls)
            os.close(answers)
        return Worker(open(reading, "rb"), open(writing, "wb"),
                      GuardedHold(self, self._workers), self._given)

    def ask(self, request: dict, files: list[int] = (),
            seconds: float = ANSWER_SECONDS) -> dict:
        """The warden's answer. Raises OSError where none comes, ValueError for nonsense."""
        with self._lock:
            self._control.settimeout(seconds)
            socket.send_fds(self._control, [json.dumps(request).encode()], files)
            answer = self._control.recv(4096)
            if not answer:
                raise OSError("the sandbox has ended")
            return json.loads(answer)

    def process_namespace(self) -> str:
        """The name that the kernel gives to the namespace of all its processes."""
        first = psutil.Process(self._process.pid).children()[0]
        return os.readlink(f"/proc/{first.pid}/ns/pid")

    def end(self) -> None:
        """End the sandbox, and with it every process inside."""
        self._control.close()
        try:
            self._process.wait(LAST_SECONDS)    # by itself, so that what it used up is counted
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                self._process.kill()            # it dies with its parent, bubblewrap
            self._process.wait()


class GuardedHold:
    """Of a worker that a warden has forked. number: the judge's own, of this worker."""

    def __init__(self, guard: Guard, number: int):
        self._guard, self._number = guard, number
        self._seconds = 0.0
        self._has_ended = False

    def seconds(self) -> float:
        """The processor time of the worker and of all that it has started.

        It ends them when the worker is gone, or when they have taken too much memory.
        """
        if not self._has_ended:
            state = self._ask("look")
            if not state.get("lives") or state["memory"] > MEMORY:
                self.end()
        return self._seconds

    def end(self) -> None:
        """End the worker, with all that it has started."""
        if not self._has_ended:
            self._has_ended = True
            self._ask("end")

    def _ask(self, operation: str) -> dict:
        try:
            state = self._guard.ask({"op": operation, "worker": self._number})
            self._seconds = max(self._seconds, float(state["seconds"]))
            return state
        except (OSError, ValueError, KeyError, TypeError):
            self._has_ended = True
            self._guard.end()
            return {}
