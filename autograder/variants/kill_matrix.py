"""How good the checks are: every mutant must die by a check, every right version must pass.

`autograder mutants [component] [--json]` prints the matrix, and the tests hold every exercise
to it.
"""

import difflib
import json as json_format
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from tqdm.auto import tqdm

from autograder.checking import exercises
from autograder.reference.names import components_of, methods_of
from autograder.variants.mutation import VariantError, accepted_of, mutants_of
from autograder.variants.trials import Trial, Verdict, Worker

FEWEST_MUTANTS = 6          # of each component, or of all methods of an exercise together
FEWEST_ACCEPTED = 3         # of each exercise


@dataclass
class Row:
    """One exercise of the matrix.

    reference, stub: the lowest and the highest part of the points, over all seeds. killed:
    mutant -> the checks that killed it. survived: mutant -> seeds. accepted: version -> the
    first check that it failed, or "". errors: what could not be tried.
    """

    exercise: str
    reference: float = 1.0
    stub: float = 0.0
    killed: dict[str, list[str]] = field(default_factory=dict)
    survived: dict[str, list[int]] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """What is wrong with these checks, one sentence each; empty when nothing is."""
        found = list(self.errors)
        if self.reference < 1:
            found.append(f"the reference gets {self.reference:.0%}")
        if self.stub > 0:
            found.append(f"an untouched stub gets {self.stub:.0%}")
        found += [f"the mutant {name} survives seed {seeds[0]}"
                  for name, seeds in self.survived.items()]
        found += [f"the accepted version {name} fails {check}"
                  for name, check in self.accepted.items() if check]
        tried = self.killed | self.survived
        parts = [[component] for component in components_of(self.exercise)]
        if methods_of(self.exercise):               # some methods have but one line to be wrong
            parts = [components_of(self.exercise)]
        for components in parts:
            count = sum(name.rpartition(":")[0] in components for name in tried)
            if count < FEWEST_MUTANTS:
                found.append(f"{'+'.join(components)} has {count} mutants, and "
                             f"{FEWEST_MUTANTS} are the least")
        if len(self.accepted) < FEWEST_ACCEPTED:
            found.append(f"there are {len(self.accepted)} accepted versions, and "
                         f"{FEWEST_ACCEPTED} are the least")
        return found


def trials_of(exercise: str, seeds: int = 1) -> list[Trial]:
    """All trials of an exercise, for the seeds 1 to `seeds`."""
    versions = [("reference", ""), ("stub", ""),
                *(("mutant", f"{mutant.component}:{mutant.name}")
                  for mutant in mutants_of(exercise)),
                *(("accepted", version.name) for version in accepted_of(exercise))]
    return [Trial(exercise, kind, seed, name) for kind, name in versions
            for seed in range(1, seeds + 1)]


def examine(exercise: str, worker: Worker, seeds: int = 1,
            progress: Callable[[], object] = lambda: None) -> Row:
    """Run all trials of an exercise. progress: called after each."""
    row = Row(exercise)
    for trial in trials_of(exercise, seeds):
        _enter(row, trial, worker.run(trial))
        progress()
    return row


def scores_by_seed(exercise: str, worker: Worker, seeds: int) -> dict[str, list[float]]:
    """What each mutant of an exercise earns, as a part of its points, with the seeds 1, 2, …"""
    return {trial.name: [worker.run(replace(trial, seed=seed, whole=True)).score
                         for seed in range(1, seeds + 1)]
            for trial in trials_of(exercise) if trial.kind == "mutant"}


def _enter(row: Row, trial: Trial, verdict: Verdict) -> None:
    if verdict.error:
        row.errors.append(f"{trial.kind} {trial.name}".strip() + f": {verdict.error}")
    elif trial.kind == "reference":
        row.reference = min(row.reference, verdict.score)
    elif trial.kind == "stub":
        row.stub = max(row.stub, verdict.score)
    elif trial.kind == "accepted":
        row.accepted[trial.name] = row.accepted.get(trial.name) or verdict.failed
    elif verdict.failed:
        checks = row.killed.setdefault(trial.name, [])
        checks.extend({verdict.failed} - {*checks})
    else:
        row.survived.setdefault(trial.name, []).append(trial.seed)


def named(component: str | None) -> list[str]:
    """The exercises meant by the name of a module, a component or an exercise; None means all.

    Raises VariantError when no exercise is meant.
    """
    known = exercises()
    if component is None:
        return known
    found = [exercise for exercise in known
             if component in (exercise, exercise.partition(".")[0], *components_of(exercise))]
    if not found:
        near = difflib.get_close_matches(component, known, 1)
        raise VariantError(f"no exercise is named {component}", "it has no checks",
                           f"did you mean {near[0]}?" if near
                           else "their names are those in autograder/checks")
    return found


def table(rows: list[Row]) -> str:
    """The matrix as text: an exercise on a line, its mutants with their killers below."""
    lines = []
    for row in rows:
        count = len(row.killed | row.survived)
        passed = sum(not check for check in row.accepted.values())
        lines.append(f"{row.exercise}: {count - len(row.survived)} of {count} mutants killed, "
                     f"{passed} of {len(row.accepted)} accepted versions passed, "
                     f"reference {row.reference:.0%}, stub {row.stub:.0%}")
        killed = {name: checks for name, checks in row.killed.items()
                  if name not in row.survived}
        width = max((len(_short(row, name)) for name in killed), default=0)
        lines += [f"    {_short(row, name):<{width}}  {', '.join(checks)}"
                  for name, checks in killed.items()]
        lines += [f"  ! {complaint}" for complaint in row.complaints()]
    return "\n".join(lines)


def main(component: str | None = None, json: bool = False, seeds: int = 1) -> int:
    """Examine exercises and print what was found. Returns 1 when there are complaints, else 0.

    Raises VariantError when no exercise has the name, or a file of mutants is wrong.
    """
    chosen = named(component)
    total = sum(len(trials_of(exercise, seeds)) for exercise in chosen)
    rows = []
    bar = tqdm(total=total, unit=" trials", file=sys.stderr, delay=2, leave=False, disable=None)
    with Worker() as worker, bar:
        for exercise in chosen:
            bar.set_description(exercise)
            rows.append(examine(exercise, worker, seeds, bar.update))
    if json:
        found = [asdict(row) | {"complaints": row.complaints()} for row in rows]
        print(json_format.dumps({"seeds": seeds, "exercises": found}, indent=1))
    else:
        print(table(rows))
    return int(any(row.complaints() for row in rows))


def _short(row: Row, mutant: str) -> str:
    """A mutant's name; with its component where the exercise has several."""
    return mutant.partition(":")[2] if len(components_of(row.exercise)) == 1 else mutant
