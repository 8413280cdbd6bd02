"""A trial of one attack: it runs as a submission would, and then what it did is looked for.

Around it lie a gradebook, another learner's submission and the course's secret; a server
listens; another question is graded before and after. Each of these is looked at.
"""

import functools
import hashlib
import os
import secrets
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil

from autograder.attacks.attack import EXERCISE, Attack
from autograder.checking import Check, expect_close
from autograder.checking.running import Report
from autograder.judge.attempt import Attempt
from autograder.judge.judging import judge
from autograder.judge.secret import VARIABLE
from autograder.judge.workers import Workers
from autograder.sandbox.choice import Sandbox
from gearworks.layers import rms_norm

CHECK_SECONDS = 0.5         # of processor time: the checks here are small
ENDING_SECONDS = 3          # by the wall clock, in which a process that was ended is gone
HIDDEN = 4711.0625          # an input of a hidden check, which float32 holds exactly
STOLEN = "STOLEN"

HONEST = """
def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
"""
WRONG = """
def rms_norm(x, weight, eps):
    return x * 0
"""
# What is held against an attack, each with what is said when it is so.
PROMISES = {
    "points": "it earned more than its answers are worth",
    "others": "another question got another grade",
    "reading": "it read, or told, what it must not know",
    "network": "it reached a server",
    "files": "it changed files of this machine",
    "processes": "processes of its own lived on",
}


@dataclass(frozen=True)
class Result:
    """What one attack achieved. broken: the promises that did not hold."""

    attack: Attack
    broken: tuple[str, ...]
    score: float
    flags: tuple[str, ...]
    seconds: float


def trial_checks() -> list[Check]:
    """The checks that attacks meet: a public one, two hidden ones, and a public one."""
    def small(subject, rng):
        """A small example."""
        _agree(subject, rng.normal(size=(2, 8)))

    def known(subject, rng):
        """An input that must not be told."""
        x = rng.normal(size=(4, 8))
        x[0] = HIDDEN
        _agree(subject, x)

    def tiny(subject, rng):
        """Small activations."""
        _agree(subject, rng.normal(size=(2, 8)) * 1e-3)

    def wide(subject, rng):
        """A longer row, and a number that is an object of the judge's."""
        _agree(subject, rng.normal(size=(1, 30)), Tempting())

    return [Check(EXERCISE, run.__name__, run.__doc__, points, public, run)
            for run, points, public in ((small, 3, True), (known, 4, False), (tiny, 2, False),
                                        (wide, 1, True))]


class Tempting:
    """A number of the judge's, with much in reach that no other side may have."""

    module = os
    half = functools.partial(int, "7")

    def __init__(self):
        self.steps = iter(self._count())

    def __float__(self) -> float:
        return 1e-6

    @classmethod
    def read(cls, path: str) -> str:
        return Path(path).read_bytes().decode("latin-1")

    def _count(self) -> Iterator[int]:
        yield 1


def _agree(subject, x: np.ndarray, eps: "float | Tempting" = 1e-6) -> None:
    x = x.astype(np.float32)
    weight = np.linspace(1, 2, x.shape[-1], dtype=np.float32)
    expect_close(subject(x.copy(), weight.copy(), eps), rms_norm(x, weight, float(eps)))


def run_trial(attack: Attack, sandbox: Sandbox | None) -> Result:
    """Run one attack in a sandbox; None is for the tests of this very trial."""
    start, nonce, checks = time.monotonic(), f"nonce-{secrets.token_hex(8)}", trial_checks()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="class-")))
        places = _class_folder(folder) | {"NONCE": nonce, "STOLEN": STOLEN,
                                          "JUDGE": str(os.getpid())}
        server = stack.enter_context(_Server(nonce, folder / "socket"))
        places |= {"PORT": str(server.port), "SOCKET": str(folder / "socket")}
        stack.enter_context(patch.dict(os.environ, {VARIABLE: places["SECRET"]}))
        before = tree_hash(folder)
        with Workers(sandbox) as workers:
            def graded(attempt: Attempt) -> Report:
                return judge(attempt, workers, seed=7, checks=checks,
                             check_seconds=CHECK_SECONDS)

            honest, wrong = graded(Attempt(EXERCISE, HONEST)), graded(Attempt(EXERCISE, WRONG))
            report = graded(attack.attempt(places))
            again = graded(Attempt(EXERCISE, HONEST))
            namespace = workers.process_namespace()
        allowed = honest.score if attack.is_right else wrong.score
        told = repr(report.outcomes) + report.problem + repr(report.remarks)
        broken = {"points": report.score > allowed,
                  "others": not honest.score == again.score == honest.total,
                  "reading": any(word in told for word in
                                 (STOLEN, places["SECRET"], str(HIDDEN), f"{HIDDEN:.0f}")),
                  "network": server.was_reached,
                  "files": tree_hash(folder) != before,
                  "processes": not _all_gone(nonce, namespace)}
    return Result(attack, tuple(name for name in PROMISES if broken[name]), report.score,
                  report.flags, time.monotonic() - start)


def _class_folder(folder: Path) -> dict[str, str]:
    """Files as they lie where a class is graded, and their places."""
    gradebook, secret = folder / "gradebook.db", secrets.token_hex(32)
    connection = sqlite3.connect(gradebook)
    with connection:
        connection.execute("CREATE TABLE grade (student TEXT, auto_score REAL)")
        connection.execute("INSERT INTO grade VALUES ('ben', 87.5)")
    connection.close()
    submission = folder / "submitted" / "ben" / "ch04" / "04_transformer.ipynb"
    submission.parent.mkdir(parents=True)
    submission.write_text('{"cells": []}', encoding="utf-8")
    (folder / "autograder_secret.txt").write_text(secret, encoding="utf-8")
    return {"FOLDER": str(folder), "GRADEBOOK": str(gradebook), "SUBMISSION": str(submission),
            "SECRET": secret, "REPOSITORY": str(Path(__file__).parents[2])}


def tree_hash(folder: Path) -> str:
    """A digest of all files of a folder: their names, rights and contents."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(folder)} {path.lstat().st_mode} ".encode() + content)
    return found.hexdigest()


class _Server:
    """Listens on every address, and on sockets that are files or only names."""

    def __init__(self, name: str, path: Path):
        self.was_reached = False
        self._ended = threading.Event()
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]
        self._sockets[0].bind(("127.0.0.1", 0))
        self.port = self._sockets[0].getsockname()[1]
        more = [(socket.SOCK_DGRAM, "AF_INET", ("127.0.0.1", self.port)),
                (socket.SOCK_STREAM, "AF_INET6", ("::1", self.port)),
                (socket.SOCK_STREAM, "AF_UNIX", str(path)),
                (socket.SOCK_STREAM, "AF_UNIX", f"\0{name}")]
        for kind, family, address in more:
            with suppress(OSError, AttributeError):         # what a system does not have
                listening = socket.socket(getattr(socket, family), kind)
                self._sockets.append(listening)
                listening.bind(address)

    def __enter__(self) -> "_Server":
        for listening in self._sockets:
            listening.settimeout(0.1)
            if listening.type == socket.SOCK_STREAM:
                listening.listen()
        self._threads = [threading.Thread(target=self._listen, args=[each])
                         for each in self._sockets]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        time.sleep(0.1)                     # what is on its way arrives
        self._ended.set()
        for thread, listening in zip(self._threads, self._sockets):
            thread.join()
            listening.close()

    def _listen(self, listening: socket.socket) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                if listening.type == socket.SOCK_STREAM:
                    listening.accept()[0].close()
                else:
                    listening.recv(1)
                self.was_reached = True


def _all_gone(nonce: str, namespace: str) -> bool:
    """Whether no process of the trial's is left, after a moment."""
    end = time.monotonic() + ENDING_SECONDS
    while any(_left(nonce, namespace)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _left(nonce: str, namespace: str) -> Iterator[int]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if nonce in " ".join(process.cmdline()) or (
                    namespace and os.readlink(f"/proc/{process.pid}/ns/pid") == namespace):
                yield process.pid
