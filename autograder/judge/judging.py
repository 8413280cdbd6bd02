"""Runs checks in this process, on what a learner wrote, which runs in another.

Checks, their seeds and what they expect stay here: with `autograder progress`, or nbgrader's
preprocessor. The worker receives calls with arguments, and nothing else.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from autograder.checking import Check, checks_of
from autograder.checking.files import files_in
from autograder.checking.levels import level_of
from autograder.checking.running import (CHECK_SECONDS, EXERCISE_SECONDS, SHORTER_SECONDS,
                                         Outcome, Report, Status, fresh_seed, never_reached,
                                         run_check)
from autograder.judge.attempt import Attempt
from autograder.judge.diagnosis import with_diagnosis
from autograder.judge.memory import Memory
from autograder.judge.tampering import signs_of_tampering
from autograder.judge.workers import LoadError, Worker, WorkerEnded, Workers
from autograder.processes.limits import TimeLimit, WallLimit, time_limit

ENDED = "that it ended the Python that ran it"


def judge(attempt: Attempt, workers: Workers, *, public: bool | None = None,
          seed: int | None = None, diagnose: bool = False,
          checks: Sequence[Check] | None = None, check_seconds: float | None = None,
          memory: Memory | None = None) -> Report:
    """Run checks of an exercise here, on an attempt whose code runs in a worker.

    public: which checks; None means all. seed: None means a fresh one. diagnose: whether public
    checks that fail name a known mistake. checks: instead of the exercise's own. check_seconds:
    of processor time, instead of CHECK_SECONDS. memory: for a seed that many are judged with;
    the same attempt is judged once. Of hidden checks the report has the title and the kind of
    error, nothing else. What ends a worker, or its time, costs the check that met it; the
    others keep their points. Raises LookupError when the exercise has no checks.
    """
    def judged() -> Report:
        return _judged(attempt, workers, public, seed, diagnose, checks, check_seconds, memory)

    if memory is None or seed is None or checks is not None:
        return judged()
    return memory.report((attempt, public, seed, diagnose, check_seconds), judged)


def _judged(attempt: Attempt, workers: Workers, public: bool | None, seed: int | None,
            diagnose: bool, checks: Sequence[Check] | None, check_seconds: float | None,
            memory: Memory | None) -> Report:
    session = _Session(attempt, workers, check_seconds or CHECK_SECONDS)
    checks = checks_of(attempt.exercise) if checks is None else checks
    seed = fresh_seed() if seed is None else seed
    report = Report(attempt.exercise, (), float(sum(check.points for check in checks)), seed,
                    level=level_of(attempt.exercise),
                    flags=signs_of_tampering(attempt.exercise, attempt.code))
    wanted = [check for check in checks if public in (None, check.public)]
    # What code has seen of hidden checks it could tell in the errors of public ones.
    wanted.sort(key=lambda check: not check.public)
    outcomes: list[Outcome] = []
    kept = memory.draws.in_use() if memory is not None else nullcontext()
    with session, kept, files_in(workers.given):
        for check in wanted:
            try:
                outcome = session.run(check, seed)
            except LoadError as error:
                return replace(report, problem=f"Its cell does not run: {error}.")
            outcomes.append(outcome if check.public else outcome.hidden())
            if outcome.status is Status.NOT_GRADED:
                outcomes += [replace(outcomes[-1], name=other.name, title=other.title,
                                     points=other.points, public=other.public)
                             for other in wanted[len(outcomes):]]
                break
        order = [check.name for check in checks]
        outcomes.sort(key=lambda outcome: order.index(outcome.name))
        report = replace(report, outcomes=tuple(outcomes))
        return (with_diagnosis(report, session.subjects) if diagnose and session.subjects
                else report)


def not_attempted(exercise: str, *, public: bool | None = None) -> Report:
    """The report of an exercise that nobody has written anything of."""
    checks = checks_of(exercise)
    outcomes = [Outcome(check.name, check.title, check.points, check.public,
                        Status.NOT_ATTEMPTED)
                for check in checks if public in (None, check.public)]
    return Report(exercise, tuple(outcomes), float(sum(check.points for check in checks)),
                  level=level_of(exercise))


class _Session:
    """The workers of one attempt, one after the other, and the time that they have used."""

    def __init__(self, attempt: Attempt, workers: Workers, check_seconds: float):
        self._attempt, self._workers = attempt, workers
        self._worker: Worker | None = None
        self._spent = 0.0                            # by workers that have ended
        self._longest = self._loading = check_seconds
        self.subjects: list[Any] = []

    def __enter__(self) -> "_Session":
        return self

    def __exit__(self, *details: object) -> None:
        self._leave()

    def run(self, check: Check, seed: int) -> Outcome:
        """Run a check, in a new worker if there is none. Raises LoadError."""
        left = EXERCISE_SECONDS - self._seconds()
        about = (check.name, check.title, check.points, check.public)
        if left <= 0:
            return never_reached(*about)
        try:
            if self._worker is None:
                self._load()
        except TimeLimit as error:
            self._leave()
            late = isinstance(error, WallLimit)
            return Outcome(*about, Status.NOT_GRADED if late else Status.OUT_OF_TIME,
                           type(error).__name__, expected="a cell that defines something",
                           found="no end of it")
        except WorkerEnded:
            self._leave()
            return Outcome(*about, Status.RAISED, "SystemExit", found=ENDED)
        worker = self._worker
        outcome = run_check(check, self.subjects, seed, seconds=min(self._longest, left),
                            clock=worker.seconds, also=worker.end)
        if outcome.status is Status.OUT_OF_TIME:
            self._longest = min(self._longest, SHORTER_SECONDS)
        elif worker.has_ended and outcome.status is not Status.NOT_GRADED:
            outcome = Outcome(*about, Status.RAISED, "SystemExit", found=ENDED)
        if worker.has_ended:
            self._leave()
        return outcome

    def _load(self) -> None:
        self._worker = worker = self._workers.start(self._attempt.module)
        with time_limit(self._loading, clock=worker.seconds, also=worker.end):
            self.subjects = worker.lend(self._attempt)

    def _seconds(self) -> float:
        return self._spent + (self._worker.seconds() if self._worker else 0.0)

    def _leave(self) -> None:
        if self._worker is not None:
            self._spent = self._seconds()
            self._worker.__exit__()
            self._worker, self.subjects = None, []
