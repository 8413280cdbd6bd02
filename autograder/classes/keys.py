"""Hashes of what a grade follows from: the submission, the checks, the grader and its machine.

Comments count, too: a grade that is made once more costs seconds, one that should have been
made again and was not costs trust.
"""

import ast
import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import autograder
import gearworks
from autograder.chapters.chapter import Chapter, Exercise
from autograder.classes.record import VERSION

HOME = Path(autograder.__file__).parent
CHECKS, MUTANTS = HOME / "checks", HOME / "mutants"
# What decides about grades besides checks; `chapters` is in them by its outline.
ROOMS = ("checking", "generators", "judge", "processes", "reference", "sandbox",
         "submissions", "variants")
PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "safetensors", "regex", "numba",
            "triton", "llguidance", "hypothesis")


def submission_key(files: Iterable[tuple[str, bytes]], chapter: Chapter | None, secret: str,
                   sandbox: str) -> str:
    """The name of the record of files that were handed in for a chapter.

    files: name and content of each. secret: the course's. sandbox: the kind of it.
    """
    digest = hashlib.sha256()
    for name, data in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\0".encode())
    told = [str(VERSION), environment_hash(), chapter.stem if chapter is not None else "",
            checks_hash(chapter.exercises) if chapter is not None else "",
            hashlib.sha256(secret.encode()).hexdigest(), sandbox]
    digest.update("\0".join(told).encode())
    return digest.hexdigest()


@cache
def environment_hash() -> str:
    """Of the grader, checks left out, of the engine, and of the machine they run on."""
    digest = hashlib.sha256()
    engine = Path(gearworks.__file__).parent
    for root, paths in ((engine, sorted(engine.rglob("*.py"))),
                        (HOME, sorted(path for room in ROOMS
                                      for path in (HOME / room).rglob("*.py")))):
        for path in paths:
            _add(digest, path.relative_to(root).as_posix(), path)
    for package in PACKAGES:
        digest.update(f"{package} {_version(package)}\0".encode())
    digest.update(f"{platform.python_version()} {platform.system()} {platform.machine()}"
                  .encode())
    return digest.hexdigest()


@cache
def checks_hash(exercises: tuple[Exercise, ...]) -> str:
    """Of a chapter's exercises, and of the modules with their checks and known mistakes."""
    digest = hashlib.sha256()
    homes = {exercise.module.partition(".")[0] for exercise in exercises}
    for module in sorted(_with_imports(homes)):
        for path in (CHECKS / f"{module}.py", MUTANTS / f"{module}.toml"):
            if path.exists():
                _add(digest, path.name, path)
    for exercise in exercises:
        digest.update(f"{exercise.name} {exercise.optional}\0".encode())
    return digest.hexdigest()


def _with_imports(modules: set[str]) -> set[str]:
    """Modules of checks, and those that they import."""
    found, waiting = set(), [*modules]
    while waiting:
        module = waiting.pop()
        path = CHECKS / f"{module}.py"
        if module in found or not path.exists():
            continue
        found.add(module)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "autograder.checks":
                waiting += [alias.name for alias in node.names]
            elif (isinstance(node, ast.ImportFrom)
                  and (node.module or "").startswith("autograder.checks.")):
                waiting.append(node.module.split(".")[2])
    return found


def _add(digest, name: str, path: Path) -> None:
    digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
