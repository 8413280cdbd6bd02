"""The class as a table: a row for each student and chapter, without what the records hold."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from autograder.classes.late import LatePolicy, on_time
from autograder.classes.record import Record, Status, write_whole
from autograder.classes.roster import Roster
from autograder.classes.submitted import Submission


@dataclass(frozen=True)
class Row:
    """A student's result in a chapter.

    Where the status goes with no number, `required`, `bonus`, `penalty` and `total` are None.
    total: required and bonus points together, at most `required_max`, less the penalty.
    manual: whether a person has changed points in the gradebook. key: of the record. flags: for
    the instructor's eyes.
    """

    student: str
    assignment: str
    chapter: str
    status: Status
    required: float | None = None
    required_max: float = 0.0
    bonus: float | None = None
    bonus_max: float = 0.0
    penalty: float | None = None
    total: float | None = None
    manual: bool = False
    submitted: str = ""
    is_late: bool = False
    name: str = ""
    email: str = ""
    key: str = ""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def is_missing(self) -> bool:
        return self.status is Status.NOT_SUBMITTED


def row_of(submission: Submission, record: Record, late: LatePolicy = on_time) -> Row:
    """A submission's row. late: what it costs to be late."""
    row = Row(submission.student, submission.assignment, record.chapter, record.status,
              required_max=record.required_max, bonus_max=record.bonus_max,
              submitted=submission.submitted.isoformat() if submission.submitted else "",
              is_late=submission.is_late, name=submission.name, email=submission.email,
              key=record.key, notes=submission.notes + record.notes,
              flags=tuple(f"{each.exercise} {flag}" for each in record.exercises
                          for flag in each.flags))
    if record.points is None:
        return row
    return priced(row, record.required, record.bonus,
                  late.penalty(submission.submitted, record.points))


def priced(row: Row, required: float, bonus: float, penalty: float) -> Row:
    """The row with these points, and the total that they make."""
    total = max(0.0, min(required + bonus, row.required_max) - penalty)
    return replace(row, required=round(required, 6), bonus=round(bonus, 6),
                   penalty=round(penalty, 6), total=round(total, 6))


def with_missing(rows: Sequence[Row], roster: Roster) -> list[Row]:
    """The rows, and one for each student of the class who handed in nothing for a chapter.

    What a chapter is worth is in all of them, those of unreadable submissions, too.
    """
    chapters = {}
    for row in sorted(rows, key=lambda row: row.required_max):
        if row.assignment:
            chapters[row.assignment] = row
    rows = [row if row.required_max or not row.assignment else replace(
        row, required_max=chapters[row.assignment].required_max,
        bonus_max=chapters[row.assignment].bonus_max) for row in rows]
    there = {(row.student, row.assignment) for row in rows}
    missing = [Row(student.id, assignment, example.chapter, Status.NOT_SUBMITTED,
                   required_max=example.required_max, bonus_max=example.bonus_max,
                   name=student.name, email=student.email)
               for assignment, example in chapters.items() for student in roster.students
               if (student.id, assignment) not in there]
    return sorted([*rows, *missing], key=lambda row: (row.assignment, row.student))


def save(rows: Iterable[Row], path: Path) -> None:
    """Write the table."""
    write_whole(path, json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))


def load(path: Path) -> list[Row]:
    """Read the table that `save` wrote; an empty one where there is none."""
    if not path.exists():
        return []
    return [Row(**told | {"status": Status(told["status"]), "notes": tuple(told["notes"]),
                         "flags": tuple(told["flags"])})
            for told in json.loads(path.read_text(encoding="utf-8"))]


def folder_of(student: str) -> str:
    """The name of a student's folder: another one for every student, and nowhere else.

    >>> folder_of("../ada"), folder_of(".."), folder_of("Ada Lovelace")
    ('..%2Fada', '%2E%2E', 'Ada Lovelace')
    """
    name = quote(student, safe=" @+,()")
    return name if name.strip(". ") else name.replace(".", "%2E").replace(" ", "%20") or "%"


def moment(text: str) -> datetime | None:
    """A row's time of submission."""
    return datetime.fromisoformat(text) if text else None
