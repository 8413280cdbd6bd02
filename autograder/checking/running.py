"""Running checks: what a check of an exercise found, and what the exercise is worth.

Every run takes a fresh seed, and tells it, so that it can be run again. Whatever the subject
does (raise, exit, recurse, loop, warn, print to stderr) ends as an outcome; only an interrupt
by the person in front passes through.
"""

import builtins
import io
import secrets
import time
import warnings
import zlib
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

import gearworks.errors
from autograder.checking import (MESSAGE_WORDS, NOTHING, Check, CheckFailure, checks_of,
                                 error_text)
from autograder.checking.draws import run_of
from autograder.checking.levels import level_of
from autograder.checking.learner_code import (COMPILING, cannot_compile, is_learners,
                                              is_not_attempted, line_of, next_step,
                                              not_compiled)
from autograder.processes.limits import WALL_PER_CPU, TimeLimit, WallLimit, time_limit
from autograder.reference.names import components_of

CHECK_SECONDS = 20          # of processor time: what one check may take
SHORTER_SECONDS = 4         # and each after the first that was out of time
EXERCISE_SECONDS = 60       # and all checks of an exercise together
HINT_WORDS = 50             # of a message


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    RAISED = "raised"
    NOT_ATTEMPTED = "not attempted"
    OUT_OF_TIME = "out of time"
    NOT_GRADED = "could not be graded"      # of which the machine is guilty, or may be


@dataclass(frozen=True)
class Outcome:
    """What one check found, in three parts. error: the name of the exception that ended it.
    figure: HTML that shows what was found; nothing, as a rule."""

    name: str
    title: str
    points: float
    public: bool
    status: Status
    error: str = ""
    expected: str = ""
    found: str = ""
    hint: str = ""
    figure: str = ""

    @property
    def earned(self) -> float:
        """All of the check's points, or none."""
        return self.points if self.status is Status.PASSED else 0.0

    def hidden(self) -> "Outcome":
        """What is told of a hidden check: no more than its title and the kind of error.

        An error class of the learner's has no name there, which could be what a check gave it.
        """
        is_known = any(hasattr(module, self.error) for module in (builtins, gearworks.errors))
        return replace(self, expected="", found="", hint="", figure="",
                       error=self.error if is_known or not self.error else "an error")


@dataclass(frozen=True)
class Report:
    """What a run of an exercise's checks found.

    total: the exercise's points, those of checks that were not run included. seed: of the
    public checks; None where nobody may know it. remarks: warnings, and whatever the code wrote
    to stderr. problem: why nothing could be run. level: where it ran, if that is not the same
    everywhere. notes: sentences that are to be said besides. flags: what an instructor may want
    to look at, and nobody else is shown. mistake: the name of the known mistake that explains
    what failed.
    """

    exercise: str
    outcomes: tuple[Outcome, ...]
    total: float
    seed: int | None = 0
    remarks: tuple[str, ...] = ()
    problem: str = ""
    level: str = ""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    mistake: str = ""

    @property
    def score(self) -> float:
        """Between 0 and `total`; public checks alone count for the whole exercise."""
        possible = sum(outcome.points for outcome in self.outcomes)
        earned = sum(outcome.earned for outcome in self.outcomes)
        return float(min(self.total, self.total * earned / possible)) if possible else 0.0

    @property
    def is_final(self) -> bool:
        """Whether the score is one. Else it is no 0: the same run, later, may give points."""
        return all(outcome.status is not Status.NOT_GRADED for outcome in self.outcomes)

    @property
    def attempted(self) -> bool:
        """Whether any check met something else than an unwritten exercise."""
        return any(outcome.status is not Status.NOT_ATTEMPTED for outcome in self.outcomes)


def fresh_seed() -> int:
    """A seed that nobody could know."""
    return secrets.randbits(32)


def generator(check: Check, seed: int) -> np.random.Generator:
    """A check's own random numbers, by the seed and its name, whatever ran before it."""
    return np.random.default_rng([seed, zlib.crc32(check.name.encode("utf-8"))])


def run_check(check: Check, subjects: Sequence[Any], seed: int, *,
              seconds: float = CHECK_SECONDS, **limit: Any) -> Outcome:
    """Run one check on the subjects, under a limit of processor time: with what it always
    draws, if there is such, and with the seed.

    limit: more of it, as `time_limit` takes it, where the subjects are another process's.
    Raises KeyboardInterrupt alone, when the person in front interrupts.

    >>> from autograder.checking import check, expect_equal
    >>> @check("arithmetic.double", points=2, public=True)
    ... def doubles(double, rng):
    ...     "Twice a number."
    ...     expect_equal(double(21), 42)
    >>> run_check(doubles, [lambda x: x + x], seed=1).status
    <Status.PASSED: 'passed'>
    """
    def outcome(status: Status, error: BaseException | None = None, figure: str = "",
                **message: str) -> Outcome:
        return Outcome(check.name, check.title, check.points, check.public, status,
                       "" if error is None else type(error).__name__, figure=figure,
                       **_within_words(message))

    try:
        with run_of((check.exercise, check.name, seed)), time_limit(seconds, **limit):
            for each in (*check.always, seed):
                check.run(*subjects, generator(check, each))
    except KeyboardInterrupt:
        raise
    except WallLimit as error:
        return outcome(Status.NOT_GRADED, error, expected="an answer",
                       found=f"none after {seconds * WALL_PER_CPU:.3g} seconds, in which it "
                             "hardly computed",
                       hint="look for what waits, such as a lock or `sleep`; if nothing does, "
                            "the machine was busy: run it again")
    except TimeLimit as error:
        return outcome(Status.OUT_OF_TIME, error, expected="an answer in reasonable time",
                       found=f"no end after {seconds:.2g} seconds of computing",
                       hint="look for a loop whose condition never changes, or for work that "
                            "is done again and again")
    except BaseException as error:
        if is_not_attempted(error):
            text = error_text(error)
            own = tuple(f"{component}:" for component in components_of(check.exercise))
            found = "" if text.startswith(own) else f"something that is not written yet: {text}"
            return outcome(Status.NOT_ATTEMPTED, error, found=found)
        if isinstance(error, CheckFailure):
            return outcome(Status.FAILED, None, error.figure, expected=error.expected,
                           found=error.found, hint=error.hint)
        return outcome(Status.RAISED, error, expected="no error",
                       **_raised(error, check.run.__code__.co_filename))
    return outcome(Status.PASSED)


def run_checks(checks: Sequence[Check], subjects: Sequence[Any], seed: int) -> list[Outcome]:
    """Run several checks, for EXERCISE_SECONDS together; what comes later is out of time.

    Once a check was out of time, each later one may take SHORTER_SECONDS.
    """
    outcomes, start, limit = [], time.process_time(), CHECK_SECONDS
    for check in checks:
        left = EXERCISE_SECONDS - (time.process_time() - start)
        if left > 0:
            outcomes.append(run_check(check, subjects, seed, seconds=min(limit, left)))
            if outcomes[-1].status is Status.OUT_OF_TIME:
                limit = SHORTER_SECONDS
        else:
            outcomes.append(never_reached(check.name, check.title, check.points, check.public))
    return outcomes


def never_reached(name: str, title: str, points: float, public: bool) -> Outcome:
    """The outcome of a check that the time limit of its exercise left no room for."""
    return Outcome(name, title, points, public, Status.OUT_OF_TIME, "TimeLimit",
                   expected="an answer in reasonable time",
                   found=f"that the checks before this one took all {EXERCISE_SECONDS} seconds",
                   hint="make those fast first")


def run_exercise(exercise: str, subjects: Sequence[Any], *, public: bool | None = True,
                 seed: int | None = None) -> Report:
    """Run the checks of an exercise here, in this process. public: which ones; None means all.

    Raises LookupError when the exercise has no checks.
    """
    seed = fresh_seed() if seed is None else seed
    checks = checks_of(exercise)
    total = sum(check.points for check in checks)
    wanted = [check for check in checks if public is None or check.public == public]
    with collected_remarks() as remarks:
        outcomes = run_checks(wanted, subjects, seed)
    return Report(exercise, tuple(outcomes), total, seed, tuple(remarks),
                  level=level_of(exercise))


@contextmanager
def collected_remarks():
    """Keep the block's warnings, and what it writes to stderr, in a list that fills at the end.

    On stderr they would cost a correct answer all its points when nbgrader grades the cell.
    """
    remarks: list[str] = []
    written = _Tail()
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(written):
        warnings.simplefilter("default")
        try:
            yield remarks
        finally:
            told = dict.fromkeys(f"{warning.category.__name__}: {warning.message}"
                                 for warning in caught if is_learners(warning.filename))
            remarks.extend(cut(text, 40) for text in list(told)[:3])
            lines = dict.fromkeys(filter(None, map(str.strip, written.text.splitlines())))
            remarks.extend(f"written to stderr: {cut(line, 40)}" for line in list(lines)[-3:])


def cut(text: str, words: int) -> str:
    """A text of at most so many words; a mark says where the rest was.

    >>> cut("one two three", 2)
    'one two …'
    """
    parts = text.split(" ")
    return text if len(parts) <= words else " ".join(parts[:words]) + " …"


class _Tail(io.TextIOBase):
    """A file that keeps the end of what is written to it."""

    def __init__(self):
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-2000:]
        return len(text)


def _within_words(message: dict[str, str]) -> dict[str, str]:
    """The parts of a message, cut to MESSAGE_WORDS in all; what was found gives way."""
    most = {"expected": 80, "hint": HINT_WORDS}
    parts = {part: cut(text, most[part]) for part, text in message.items() if part in most}
    room = MESSAGE_WORDS - sum(len(text.split(" ")) for text in parts.values())
    return {part: parts.get(part, cut(text, room)) for part, text in message.items()}


def _raised(error: BaseException, checks: str) -> dict[str, str]:
    said, line = not_compiled(error)
    if said:
        return {"found": cannot_compile(said, line), "hint": COMPILING}
    line = line_of(error, checks)
    found = f"{type(error).__name__}: {error_text(error)}".removesuffix(": ")
    if line:
        return {"found": f"{found}, raised at {line}",
                "hint": next_step(error, line) or "what led to this line, with which values?"}
    if isinstance(error, (TypeError, AttributeError)) and "'NoneType'" in found:
        return {"found": NOTHING}                    # the check wanted to use what was returned
    return {"found": f"{found}, raised when the check called your code or used its result",
            "hint": "compare the signature, and what the function returns, with its docstring"}
