"""A sandbox of bubblewrap: namespaces of Linux, and nothing inside but `view`.

In it runs a warden (`autograder.judge.warden`), the first process of its namespace, which forks
a worker for each question. Nothing in a namespace can signal its first process; when the
warden ends, the kernel ends all others.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from autograder.sandbox import view
from autograder.sandbox.limits import DISK_BYTES
from autograder.sandbox.system_calls import filter_program

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache",
          "/etc/alternatives", "/etc/localtime")
SHARED_MEMORY_BYTES = 64 * 2**20
COUNTS_BY_NAMESPACE = (5, 14)       # the first Linux whose limit of processes does


class Bubblewrap:
    """A sandbox that is started once and serves one question after the other."""

    name = "bubblewrap"

    def start(self, module: str, *arguments: str, keep: int, given: Path) -> subprocess.Popen:
        """Run a module of the worker's in a new sandbox.

        keep: the one open file that it has. given: a folder that it reads. Raises OSError where
        there is no bubblewrap.
        """
        with tempfile.TemporaryFile() as rules:
            program = filter_program()
            if program is not None:
                rules.write(program)
                rules.seek(0)
            filtered = [] if program is None else ["--seccomp", str(rules.fileno())]
            command = ["bwrap", *walls([given]), *filtered, "--", sys.executable, "-P", "-m",
                       module, str(keep), *arguments]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                    pass_fds=[keep, rules.fileno()], start_new_session=True)

    def problem(self) -> str:
        """Why it cannot be used here; "" where it can."""
        if sys.platform != "linux":
            return "bubblewrap is for Linux"
        if shutil.which("bwrap") is None:
            return "bubblewrap is not installed"
        if not _is_root() and _kernel() < COUNTS_BY_NAMESPACE:
            return ("for an ordinary user bubblewrap needs Linux 5.14, which counts the "
                    "processes of a sandbox apart from the user's others")
        return _trial()


def walls(given: Sequence[Path] = ()) -> list[str]:
    """The options of bubblewrap: what a sandbox sees, these folders among it, and may do."""
    return [*_privileges(), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", "--hostname", "sandbox", "--new-session",
            "--die-with-parent", "--as-pid-1", "--clearenv",
            *(word for pair in view.environment().items() for word in ("--setenv", *pair)),
            *_files(given), "--chdir", view.SCRATCH]


def worker_identity() -> int:
    """The user that the warden, where it is root, makes a worker; no other sandbox has it."""
    return 2**20 + os.getpid() if _is_root() else 0


def _is_root() -> bool:
    return os.geteuid() == 0


def _privileges() -> list[str]:
    """What the warden may do more than a worker.

    For root it changes a worker's user, and ends it. For all others the warden and the worker
    are one user in a namespace of its own, and the warden lets nobody look into it.
    """
    if _is_root():
        return ["--cap-drop", "ALL", *(word for power in ("SETUID", "SETGID", "KILL")
                                       for word in ("--cap-add", f"CAP_{power}"))]
    none_within = ["--disable-userns"] if _knows("--disable-userns") else []
    return ["--unshare-user", *none_within, "--uid", "65534", "--gid", "65534"]


def _files(given: Sequence[Path]) -> list[str]:
    options: list[str] = []
    for place in SYSTEM:
        if os.path.islink(place):
            options += ["--symlink", os.readlink(place), place]
        else:
            options += ["--ro-bind-try", place, place]
    scratch = [(view.SCRATCH, DISK_BYTES), ("/dev/shm", SHARED_MEMORY_BYTES)]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for place, size in scratch:
        limit = ["--size", str(size)] if _knows("--size") else []   # else memory's limit holds
        options += ["--perms", "1777", *limit, "--tmpfs", place]
    shown = [(path, str(path)) for path in (*view.python_trees(), *given)
             if not path.is_relative_to("/usr")]
    shown += view.course_files()
    parents = sorted({str(parent) for _, place in shown for parent in Path(place).parents}
                     - {"/", "/usr"})
    for parent in parents:                          # else only root may pass through them
        options += ["--perms", "0755", "--dir", parent]
    for path, place in shown:
        options += ["--ro-bind", str(path), place]
    for path in view.hidden_trees():
        options += ["--perms", "0755", "--tmpfs", str(path), "--remount-ro", str(path)]
    if "/tmp" not in parents:
        options += ["--symlink", view.SCRATCH, "/tmp"]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def _kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", platform.release())[:2]))


@cache
def _knows(option: str) -> bool:
    """Whether this version of bubblewrap has an option: 0.6 of Ubuntu 22.04 lacks some."""
    try:
        told = subprocess.run(["bwrap", "--help"], capture_output=True, encoding="utf-8")
    except OSError:
        return False
    return f"{option} " in told.stdout + told.stderr


@cache
def _trial() -> str:
    command = ["bwrap", *walls(), "--", sys.executable, "-P", "-c", ""]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=30, encoding="utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    said = " ".join(done.stderr.split())[:300]
    return "" if done.returncode == 0 else f"bubblewrap does not work here: {said}"
