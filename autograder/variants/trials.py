"""Trials of an exercise's checks: on the reference, the stub, mutants and accepted versions.

A mutant may loop for ever, eat memory or end its process. So trials run in a worker process,
one after the other, which announces every check before it starts it; when nothing more comes,
the check announced last has killed the mutant.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autograder.checking import checks_of
from autograder.checking.differential import first_difference_only
from autograder.checking.running import CHECK_SECONDS, Status, collected_remarks, run_check
from autograder.processes.child import Child, pipes
from autograder.reference.cutting import stub_of
from autograder.reference.names import names_of
from autograder.variants.mutation import (accepted_of, load_accepted, load_mutant, mutants_of,
                                          reference_subjects)
from gearworks.errors import GearworksError

MUTANT_SECONDS = 3          # of processor time that a mutant may take for one check
SILENCE_SECONDS = 300       # by the wall clock: what nothing stops from within is killed then


@dataclass(frozen=True)
class Trial:
    """A version of an exercise under its checks: "reference", "stub", "mutant", "accepted".

    whole: whether a mutant meets all checks, and gets the points of those that it passes; else
    its trial ends with the first that kills it.
    """

    exercise: str
    kind: str
    seed: int
    name: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a trial ended.

    score: a fraction. failed, how: the first check that failed. error: why there was no trial.
    """

    score: float = 0.0
    failed: str = ""
    how: str = ""
    error: str = ""


class Worker:
    """A process that runs trials: started for the first, and again after it was killed."""

    def __init__(self):
        self._child = Child("autograder.variants.trials")

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *details: object) -> None:
        self._child.end()

    def run(self, trial: Trial, silence: float = SILENCE_SECONDS) -> Verdict:
        """Run one trial. silence: after so many seconds without news the process is killed."""
        self._child.tell(dataclasses.asdict(trial))
        check = ""
        while (news := self._child.hear(silence)) is not None:
            if "verdict" in news:
                return Verdict(**news["verdict"])
            check = news.get("check", check)
        self._child.end()
        return (Verdict(failed=check, how="ended its process") if check
                else Verdict(error="the worker did not start"))


def trial_subjects(trial: Trial) -> list[Any]:
    """What a trial is about. Raises GearworksError when there is no such version."""
    match trial.kind:
        case "reference":
            return reference_subjects(trial.exercise)
        case "stub":
            namespace: dict[str, Any] = {"__name__": "stub"}
            exec(compile(stub_of(trial.exercise), "<stub>", "exec", dont_inherit=True),
                 namespace)
            return [namespace[name] for name in names_of(trial.exercise)]
        case "mutant":
            mutant = next(each for each in mutants_of(trial.exercise)
                          if f"{each.component}:{each.name}" == trial.name)
            return load_mutant(trial.exercise, mutant)
        case "accepted":
            version = next(each for each in accepted_of(trial.exercise)
                           if each.name == trial.name)
            return load_accepted(trial.exercise, version)
    raise ValueError(f"a trial of an unknown kind, {trial.kind!r}")


def run_trial(trial: Trial, say: Callable[[dict], None]) -> Verdict:
    """Run a trial in this process.

    say: is told of each check before it runs.
    """
    try:
        subjects = trial_subjects(trial)
    except (GearworksError, ImportError, SyntaxError) as error:
        return Verdict(error=f"{type(error).__name__}: {error}")
    checks = checks_of(trial.exercise)
    seconds = MUTANT_SECONDS if trial.kind == "mutant" else CHECK_SECONDS
    earned, failed, how = 0.0, "", ""
    for check in checks:
        say({"check": check.name})
        with collected_remarks(), first_difference_only():
            outcome = run_check(check, subjects, trial.seed, seconds=seconds)
        earned += outcome.earned
        if outcome.status is not Status.PASSED and not failed:
            raised = outcome.status is Status.RAISED
            failed, how = check.name, f"raised {outcome.error}" if raised else outcome.status
            if trial.kind == "mutant" and not trial.whole:
                break
    return Verdict(earned / sum(check.points for check in checks), failed, str(how))


def main() -> None:
    """Run the trials that come in.

    What checks load once, such as Hugging Face's models, must not count as time that a mutant
    takes: before the first mutant of an exercise, its checks have met the reference in this
    very process.
    """
    told, say = pipes()
    loaded: set[str] = set()
    for fields in told:
        trial = Trial(**fields)
        if trial.kind == "mutant" and trial.exercise not in loaded:
            run_trial(Trial(trial.exercise, "reference", trial.seed), lambda news: None)
        if trial.kind in ("mutant", "reference"):
            loaded.add(trial.exercise)
        say({"verdict": dataclasses.asdict(run_trial(trial, say))})


if __name__ == "__main__":
    main()
