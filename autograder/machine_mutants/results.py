"""What became of the mutants made by machine: rows of a file, and how they read.

A row has the hash of what it was made from (see `fingerprint`).
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from autograder.machine_mutants.equivalents import equivalents
from autograder.machine_mutants.trials import Outcome

PATH = Path("book") / "machine_mutants.json"                # below the repository
SURVIVED = "-"
WIDE_ENOUGH = 150           # wide calls in which an equivalent mutant did the same
APART = ("rounds", "types")
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass
class Survivor:
    """A mutant that no check catches.

    line: in the reference's module. change: the lines before and after. found: what a
    comparison with the reference says (see `comparison.Comparison`), with the check that it met
    there and the first difference; calls, wide: how many calls were alike.
    """

    key: str
    component: str
    operator: str
    line: int
    change: str
    found: str = ""
    check: str = ""
    calls: int = 0
    wide: int = 0
    shows: str = ""

    @property
    def kind(self) -> str:
        """Why it lives: "equivalent", as listed with a reason, or as it did the same in many
        wide calls; it "rounds" otherwise, or gives other "types"; it is another "test" that
        tells right from wrong; else it is "open"."""
        if self.key in equivalents() or self.found == "same" and self.wide >= WIDE_ENOUGH:
            return "equivalent"
        if self.component.endswith("_test"):
            return "test"
        return self.found if self.found in APART else "open"

    @property
    def reason(self) -> str:
        """Why it lives, in a sentence for a reader."""
        if self.key in equivalents():
            return equivalents()[self.key].reason
        alike = f"{self.calls} calls of checks and {self.wide} wider ones"
        return {"equivalent": f"bit for bit the same in {alike}",
                "rounds": "only rounds otherwise",
                "types": "equal values of other types",
                "test": "another test that passes right versions, and fails wrong ones",
                }.get(self.kind, {
                    "caught": f"caught with another seed by {self.check}",
                    "differs": f"{self.check} sees a difference and lets it pass",
                    "wider": "differs on inputs that no check draws",
                    "same": f"the same in {alike}",
                    "": "not compared yet"}.get(self.found, self.found))


@dataclass
class Row:
    """What became of an exercise's mutants.

    made_from: the hash of mutants and checks. checks: their names, public ones first; public:
    how many those are. outcomes: a letter for each mutant, in their order: which check caught
    it, or "-". operators: by name, how many were made, and how many of them survived.
    seconds: that it took, by the wall clock.
    """

    exercise: str
    made_from: str
    checks: list[str]
    public: int
    outcomes: str = ""
    out_of_time: int = 0
    seconds: float = 0.0
    operators: dict[str, list[int]] = field(default_factory=dict)
    survivors: list[Survivor] = field(default_factory=list)
    problem: str = ""

    @classmethod
    def of(cls, data: dict) -> "Row":
        """A row as the file has it."""
        return cls(**data | {"survivors": [Survivor(**each) for each in data["survivors"]]})

    def letter(self, outcome: Outcome) -> str:
        """The letter that stands for an outcome."""
        return LETTERS[self.checks.index(outcome.check)] if outcome.check else SURVIVED

    @property
    def made(self) -> int:
        return len(self.outcomes)

    def count(self, kind: str) -> int:
        """How many survivors are of a kind."""
        return sum(survivor.kind == kind for survivor in self.survivors)

    @property
    def distinct(self) -> int:
        """Mutants that do something else than the reference, in more than rounding or types."""
        return self.made - len(self.survivors) + self.count("open")

    @property
    def killed(self) -> int:
        return self.made - self.outcomes.count(SURVIVED)

    @property
    def killed_by_public(self) -> int:
        return sum(letter != SURVIVED and LETTERS.index(letter) < self.public
                   for letter in self.outcomes)


def read(path: Path) -> dict[str, Row]:
    """The rows of a file by exercise; none where there is no file."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))["exercises"]
    return {data["exercise"]: Row.of(data) for data in rows}


def write(path: Path, rows: dict[str, Row], order: Sequence[str]) -> None:
    """Replace a file, at once, by one with these rows, in the order of their exercises.

    A row is a line, so that two people who renew different rows change different lines.
    """
    place = {name: at for at, name in enumerate(order)}
    lines = [json.dumps(asdict(row), ensure_ascii=False) for row in sorted(
        rows.values(), key=lambda row: place.get(row.exercise, len(place)))]
    new = path.with_suffix(".new")
    new.write_text('{"exercises": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    os.replace(new, path)


def summary(row: Row) -> str:
    """An exercise in a line."""
    if row.problem:
        return f"{row.exercise}: not tried: {row.problem}"
    return (f"{row.exercise}: {row.made} mutants, {_part(row.killed, row.distinct)} killed, "
            f"{_part(row.killed_by_public, row.distinct)} by public checks, "
            f"{row.out_of_time} of them out of time; {row.count('open')} survive, "
            f"{_apart([row])}; {row.seconds:.0f} s")


def report(rows: Sequence[Row]) -> Iterator[str]:
    """The matrix as lines of text: each exercise, and below it its open survivors."""
    for row in rows:
        yield summary(row)
        for survivor in row.survivors:
            if survivor.kind in ("equivalent", "test"):
                continue
            yield (f"  {survivor.key} {survivor.component} {survivor.operator}, line "
                   f"{survivor.line}: {survivor.reason}")
            yield from (f"      {line}" for line in survivor.change.splitlines())
            if survivor.shows:
                yield f"      {survivor.shows}"
    made = sum(row.distinct for row in rows)
    yield (f"{len(rows)} exercises: {sum(row.made for row in rows)} mutants, "
           f"{_part(sum(row.killed for row in rows), made)} killed, "
           f"{_part(sum(row.killed_by_public for row in rows), made)} by public checks, "
           f"{sum(row.count('open') for row in rows)} survive, "
           f"{_apart(rows)}")


def _apart(rows: Sequence[Row]) -> str:
    """How many survivors are no fault of the checks, by kind."""
    says = {"rounds": "only round otherwise", "types": "give other types",
            "test": "are right tests", "equivalent": "are equivalent"}
    counts = {kind: sum(row.count(kind) for row in rows) for kind in says}
    return ", ".join(f"{count} {says[kind]}" for kind, count in counts.items())


def _part(count: int, whole: int) -> str:
    return f"{count / whole:.1%}" if whole else "none"
