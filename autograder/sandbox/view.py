"""What a worker sees of this machine: Python, its packages, the engine, and the worker itself.

No check, no generator, no source of a chapter, no home, nothing that other people handed in.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import gearworks

COURSE = "/course"          # where the engine and the worker's modules lie inside
SCRATCH = "/scratch"        # the one folder that can be written to, and the working directory
AUTOGRADER = Path(__file__).parents[1]

# Of the autograder, what the process that runs a learner's code imports. It compares nothing.
WORKER = ("__init__.py", "judge/__init__.py", "judge/worker.py", "judge/warden.py",
          "judge/wire.py", "judge/peer.py", "judge/attempt.py", "sandbox/__init__.py",
          "sandbox/limits.py", "reference/__init__.py", "reference/names.py",
          "checking/__init__.py", "checking/check.py", "checking/expectations.py",
          "checking/learner_code.py", "generators/__init__.py", "generators/printing.py",
          "processes/__init__.py", "processes/limits.py")
SETTINGS = ("TRITON_INTERPRET",)        # of the judge's environment, what a worker has, too


def course_files() -> Iterator[tuple[Path, str]]:
    """The course's own files and folders that a worker reads, each with its place inside."""
    yield Path(gearworks.__file__).parent, f"{COURSE}/gearworks"
    for name in WORKER:
        yield AUTOGRADER / name, f"{COURSE}/autograder/{name}"


def python_trees() -> list[Path]:
    """The folders of this Python and of its packages, none of them inside another."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent,
             Path(sys.executable).resolve().parents[1],
             *(Path(sysconfig.get_path(name)) for name in names)}
    found = {path for path in found if path.is_dir()}
    return sorted(path for path in found if not found & {*path.parents})


def hidden_trees() -> list[Path]:
    """Folders within those that a worker must not see: an autograder among the packages."""
    places = {Path(sysconfig.get_path(name)) / "autograder" for name in ("purelib", "platlib")}
    return sorted(path for path in places if path.is_dir())


def environment() -> dict[str, str]:
    """The whole environment of a worker."""
    threads = [f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")]
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": SCRATCH, "TMPDIR": SCRATCH,
            "USER": "learner", "LOGNAME": "learner", "PYTHONPATH": COURSE,
            "PYTHONHASHSEED": "0",              # sets are in the same order in every run
            "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1",
            "NUMBA_CACHE_DIR": f"{SCRATCH}/numba", "TRITON_CACHE_DIR": f"{SCRATCH}/triton",
            **dict.fromkeys(threads, "1"),
            **{name: os.environ[name] for name in SETTINGS if name in os.environ}}
