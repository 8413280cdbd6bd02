"""The first process of a sandbox, `python -m autograder.judge.warden`: it forks the workers.

It has loaded Python and the engine, and never a line of a learner's. One worker lives at a
time; with it ends all that it has started, and what it has left in files ends with the sandbox.
The judge asks, over a socket, for a worker, for what it has used up, and for its end.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from autograder.judge.worker import work
from autograder.reference.names import home_of
from autograder.sandbox.limits import restrict

WRITABLE = ("/scratch", "/dev/shm", "/dev/mqueue")
_DUMPABLE = 4                           # PR_SET_DUMPABLE
_GONE = {"seconds": 0.0, "memory": 0, "lives": False}


def main() -> None:
    """Serve the judge at the other end of a socket until it is gone.

    Arguments: the socket's number, and the user that workers are; 0 leaves them as they are.
    """
    control, user = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_DFL)    # without a handler of ours, none comes here
    _let_be_traced(False)
    warden = Warden(control, user)
    while warden.serve():
        pass


class Warden:
    """Forks workers, one after the other, and knows what they have used up."""

    def __init__(self, control: socket.socket, user: int):
        self._control, self._user = control, user
        self._worker: int | None = None
        self._number = 0                    # the judge's, of the worker that was forked last
        self._before = 0.0                  # processor time of all earlier workers
        self._memory = _private_bytes(os.getpid())

    def serve(self) -> bool:
        """Answer one request; whether another may come."""
        text, ends, _, _ = socket.recv_fds(self._control, 4096, 2)
        if not text:
            return False
        request = json.loads(text)
        match request["op"]:
            case "start":
                self._end_all()
                if any(os.path.isdir(place) and os.listdir(place) for place in WRITABLE):
                    return False            # a sandbox that is not as new is not used again
                importlib.import_module(home_of(request["module"]))
                self._number = request["worker"]
                self._start(*ends)
            case "end" if request["worker"] == self._number:
                self._end_all()
        # Who asks late about an earlier worker, from another thread, does nothing to this one.
        state = self._state() if request["worker"] == self._number else _GONE
        self._control.send(json.dumps(state).encode())
        return True

    def _start(self, reading: int, writing: int) -> None:
        gc.freeze()
        self._before = _seconds_of_the_dead()
        self._memory = _private_bytes(os.getpid())
        self._worker = os.fork()
        if self._worker == 0:
            try:
                os.setsid()
                self._step_down()
                for number in map(int, os.listdir("/proc/self/fd")):
                    if number > 2 and number not in (reading, writing):
                        with suppress(OSError):
                            os.close(number)
                restrict(walled=True)
            except BaseException:
                os._exit(1)
            work(reading, writing)
        os.close(reading)
        os.close(writing)

    def _step_down(self) -> None:
        """Become a user who may do nothing to the warden."""
        if self._user:
            os.setgroups([])
            os.setgid(self._user)
            os.setuid(self._user)
        _let_be_traced(True)                # else its own files in /proc are closed to it

    def _end_all(self) -> None:
        """End every other process here. While there is a child, there may be others."""
        with suppress(ChildProcessError):
            while True:
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                os.waitpid(-1, 0)
        self._worker = None

    def _state(self) -> dict:
        """What the worker and all that it has started have used up, and whether it lives."""
        with suppress(ChildProcessError):
            while True:
                ended, _ = os.waitpid(-1, os.WNOHANG)
                if not ended:
                    break
                if ended == self._worker:
                    self._worker = None
        seconds, memory = _seconds_of_the_dead() - self._before, sum(map(_used, WRITABLE))
        for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if process != os.getpid():
                with suppress(OSError, ValueError, IndexError):         # it may end meanwhile
                    seconds += _seconds_of(process)
                    memory += max(0, _private_bytes(process) - self._memory)
        return {"seconds": seconds, "memory": memory, "lives": self._worker is not None}


def _seconds_of_the_dead() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds_of(process: int) -> float:
    """Its processor time, with that of children it has waited for."""
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as status:
        fields = status.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _private_bytes(process: int) -> int:
    """Its memory that belongs to no file; a fork's counts as much as its parent's."""
    with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as status:
        lines = dict(line.split(":", 1) for line in status if ":" in line)
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def _used(folder: str) -> int:
    """The bytes of all files in a file system that is in memory."""
    try:
        system = os.statvfs(folder)
    except FileNotFoundError:
        return 0
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def _let_be_traced(allowed: bool) -> None:
    ctypes.CDLL(None).prctl(_DUMPABLE, int(allowed), 0, 0, 0)


if __name__ == "__main__":
    main()
