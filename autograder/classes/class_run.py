"""One run over a class: from what was handed in to a folder with all that follows from it.

The folder holds records/ (a file for each submission, by its key), class.json (the table),
grades.csv, report.html, feedback/STUDENT/CHAPTER.html and audit.jsonl. All but the records and
the audit log is made anew by each run.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autograder.classes import table
from autograder.classes.audit import AuditLog
from autograder.classes.class_report import class_report
from autograder.classes.engine import Course, Engine, graded
from autograder.classes.exports import write_csv
from autograder.classes.feedback import feedback
from autograder.classes.late import LatePolicy, on_time
from autograder.classes.record import Records, Status, write_whole
from autograder.classes.roster import Roster
from autograder.classes.submitted import Submission
from autograder.classes.table import Row, folder_of, row_of, with_missing
from gearworks.errors import GearworksError

Bar = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Results:
    """A folder of results."""

    folder: Path

    @property
    def records(self) -> Records:
        return Records(self.folder / "records")

    @property
    def table(self) -> Path:
        return self.folder / "class.json"

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.folder / "audit.jsonl")

    def rows(self) -> list[Row]:
        """The table as the last run left it."""
        return table.load(self.table)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs away. Raises GearworksError where one is at work."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            raise GearworksError(f"another run is writing to {self.folder}",
                                 "two would overwrite each other's tables",
                                 "wait for it, or name another folder with --to") from None


def grade_class(submissions: Sequence[Submission], course: Course, results: Results,
                engine: Engine, *, roster: Roster = Roster(), late: LatePolicy = on_time,
                again: bool = False, bar: Bar = lambda found, total: found) -> list[Row]:
    """Grade submissions, as far as their records are not there; returns all rows of the class.

    Nothing is published by this: see `publish`. bar: what goes through them, and how many there
    are. again: to grade those with records, too.
    """
    records = results.records
    found = graded(submissions, course, records, engine, again)
    rows = [row_of(submission, record, late)
            for submission, record in bar(found, len(submissions))]
    return with_missing(rows, roster)


def publish(rows: Sequence[Row], results: Results, now: datetime) -> None:
    """Write table, CSV, report and feedback for these rows, and what changed to the log."""
    results.audit.add_changes(results.rows(), rows)
    table.save(rows, results.table)
    write_csv(rows, results.folder / "grades.csv")
    write_whole(results.folder / "report.html", class_report(rows, results.records, now))
    pages = results.folder / "feedback"
    shutil.rmtree(pages, ignore_errors=True)
    for row in rows:
        record = results.records.get(row.key) if row.status.has_points else None
        if record is not None:
            write_whole(pages / folder_of(row.student) / f"{row.chapter}.html",
                        feedback(row, record))


def summary(rows: Sequence[Row]) -> str:
    """The statuses of each chapter and the mean of its totals, as a table in plain text."""
    seen = [status for status in Status if any(row.status is status for row in rows)]
    head = ["chapter", *map(str, seen), "mean"]
    lines = [head]
    for assignment in sorted({row.assignment for row in rows}):
        own = [row for row in rows if row.assignment == assignment]
        totals = [row.total for row in own if row.total is not None]
        mean = f"{sum(totals) / len(totals):.1f}" if totals else "-"
        lines.append([assignment or "none", *(str(sum(row.status is status for row in own))
                                              for status in seen), mean])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) if at == 0 else cell.rjust(width)
                               for at, (cell, width) in enumerate(zip(line, widths)))
                     for line in lines)
