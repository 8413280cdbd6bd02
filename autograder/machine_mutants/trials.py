"""Trials of mutants by an exercise's checks, the public ones first, to the first that fails.

They run in a copy of a worker process that has met the exercise's reference (see
`autograder.processes.fork`). A mutant has as much processor time for a check as the reference
takes, several times over; what takes longer is caught by that check.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from autograder.checking import Check, checks_of
from autograder.checking.differential import first_difference_only
from autograder.checking.running import CHECK_SECONDS, Status, collected_remarks, run_check
from autograder.machine_mutants import mutants
from autograder.machine_mutants.comparison import Comparison, Records, compare
from autograder.machine_mutants.mutants import MachineMutant
from autograder.processes.child import Child, pipes
from autograder.processes.fork import end_after, in_a_copy
from autograder.variants.mutation import reference_subjects

SEED = 1                            # of every trial: the outcome is the same each time
LEAST_SECONDS, TIMES = 1.0, 5       # so many seconds, and so many times the reference's
SILENCE_SECONDS = 600               # by the wall clock, and only where nothing else ends it
OF_PRECISION = {"precision", "dtype", "cast-dropped"}       # operators that change no formula
OUT_OF_TIME, ENDED = "out of time", "ended its process"


@dataclass(frozen=True)
class Outcome:
    """How a trial ended. check: the first that failed; "" for a survivor. how: in a word."""

    check: str = ""
    how: str = ""


class TrialError(RuntimeError):
    """An exercise whose mutants cannot be tried: the reference itself fails."""


@dataclass
class Bench:
    """An exercise made ready for trials: its mutants, its checks, and seconds for each.

    Raises TrialError when the reference, made anew, fails a check.
    """

    exercise: str
    methods: tuple[str, ...]
    mutants: dict[str, MachineMutant] = field(init=False)
    checks: list[Check] = field(init=False)
    seconds: dict[str, float] = field(init=False)
    records: Records = field(init=False)

    def __post_init__(self) -> None:
        self.mutants = {mutant.key: mutant
                        for mutant in mutants.mutants_of(self.exercise, self.methods)}
        self.checks = in_order(self.exercise)
        self.seconds = {}
        anew = mutants.load(self.exercise, None)
        for subjects in (reference_subjects(self.exercise), anew):    # the first loads models
            for check in self.checks:
                start = time.process_time()
                with collected_remarks():
                    outcome = run_check(check, subjects, SEED, seconds=3 * CHECK_SECONDS)
                if outcome.status is not Status.PASSED:
                    raise TrialError(f"the reference fails {check.name}: {outcome.found}")
                self.seconds[check.name] = (LEAST_SECONDS
                                            + TIMES * (time.process_time() - start))
        self.records = Records(self.checks, anew)

    def outcome(self, key: str, say=lambda news: None) -> Outcome:
        """Try a mutant. say: is told of each check before it runs."""
        subjects = self._loaded(key)
        if isinstance(subjects, Outcome):
            return subjects
        for check in self.checks:
            say({"check": check.name})
            with collected_remarks(), first_difference_only():
                outcome = run_check(check, subjects, SEED, seconds=self.seconds[check.name])
            if outcome.status is not Status.PASSED:
                return Outcome(check.name, outcome.error or str(outcome.status)
                               if outcome.status is not Status.OUT_OF_TIME else OUT_OF_TIME)
        return Outcome()

    def compared(self, key: str) -> Comparison:
        """Compare a mutant with the reference on more inputs than one run of its checks has."""
        subjects = self._loaded(key)
        return (Comparison("differs", shows=subjects.how) if isinstance(subjects, Outcome)
                else compare(self.records, subjects, self.seconds,
                             self.mutants[key].operator in OF_PRECISION))

    def _loaded(self, key: str) -> list[Any] | Outcome:
        mutant = self.mutants[key]
        try:
            return mutants.load(self.exercise, mutant)
        except Exception as error:              # what stands in the module runs when it loads
            return Outcome(self.checks[0].name, type(error).__name__)


def in_order(exercise: str) -> list[Check]:
    """The checks of an exercise, public ones first."""
    return sorted(checks_of(exercise), key=lambda check: not check.public)


class Worker:
    """A process for trials: started for the first, and again after something ended it."""

    def __init__(self) -> None:
        self._child = Child("autograder.machine_mutants.trials", threads=1)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *details: object) -> None:
        self._child.end()

    def outcomes(self, exercise: str, methods: Sequence[str],
                 keys: Sequence[str]) -> Iterator[Outcome]:
        """The outcomes of trials, one by one. Raises TrialError."""
        for found, check in self._each("outcome", exercise, methods, keys):
            yield Outcome(**found) if found else Outcome(check, ENDED)

    def comparisons(self, exercise: str, methods: Sequence[str],
                    keys: Sequence[str]) -> Iterator[Comparison]:
        """What comparisons of mutants with the reference find. Raises TrialError."""
        for found, _ in self._each("compared", exercise, methods, keys):
            yield Comparison(**found) if found else Comparison("unknown", shows=ENDED)

    def _each(self, what: str, exercise: str, methods: Sequence[str],
              keys: Sequence[str]) -> Iterator[tuple[dict | None, str]]:
        """For each mutant what was found, or None, and the check that was told of last."""
        left = list(keys)
        while left:
            self._child.tell({"what": what, "exercise": exercise, "methods": [*methods],
                              "keys": left})
            check = ""
            while (news := self._child.hear(SILENCE_SECONDS)) is not None:
                if "error" in news:
                    raise TrialError(f"{exercise}: {news['error']}")
                if "ended" in news or "done" in news:
                    break
                check = news.get("check", check)
                if "found" in news:
                    left.pop(0)
                    yield news["found"], check
                    check = ""
            if news is None:
                self._child.end()
            if left and not check:
                raise TrialError(f"{exercise}: the process for its trials did not start")
            if left:                                # what ended the process, or stopped it
                left.pop(0)
                yield None, check


def main() -> None:
    """Do what comes in, one exercise after the other.

    The mutants of an exercise share a copy of this process until one of them ends it.
    """
    told, say = pipes()
    bench: Bench | None = None
    for news in told:
        if bench is None or bench.exercise != news["exercise"]:
            try:
                bench = Bench(news["exercise"], tuple(news["methods"]))
            except Exception as error:
                bench = None
                say({"error": f"{type(error).__name__}: {error}"})
                continue
        if unknown := {*news["keys"]} - bench.mutants.keys():
            say({"error": f"it has no mutant {min(unknown)}: was the reference edited?"})
            continue
        if news["what"] == "compared":
            bench.records.fill()
        say({"done": True} if in_a_copy(partial(_each, bench, news["what"], news["keys"], say))
            else {"ended": True})


def _each(bench: Bench, what: str, keys: Sequence[str], say: Callable[[dict], None]) -> None:
    """Try or compare mutants, and say what was found of each."""
    compares = what == "compared"
    seconds = sum(bench.seconds.values()) * (2 * len(bench.records) if compares else 1) + 5
    for key in keys:
        end_after(seconds, 10 * seconds)
        say({"check": bench.checks[0].name})
        say({"found": asdict(bench.compared(key) if compares else bench.outcome(key, say))})


if __name__ == "__main__":
    main()
