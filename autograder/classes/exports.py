"""Grades in the files that other systems take: a plain CSV, Canvas, Moodle, Gradescope.

A result without a number is an empty cell everywhere, never a 0.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder.classes.record import Record, Records, write_whole
from autograder.classes.roster import Roster
from autograder.classes.table import Row, folder_of
from gearworks.errors import UsageError

COLUMNS = ("assignment", "student_id", "name", "email", "submitted", "late", "status",
           "required", "required_max", "bonus", "bonus_max", "late_penalty", "total", "notes",
           "look_at")
FORMULA = ("=", "+", "-", "@", "\t", "\r")      # with which a spreadsheet begins to compute


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """The table of all results, one row for each student and chapter."""
    told = [{"assignment": row.assignment, "student_id": row.student, "name": row.name,
             "email": row.email, "submitted": row.submitted,
             "late": "yes" if row.is_late or row.penalty else "", "status": row.status,
             "required": _number(row.required), "required_max": _number(row.required_max),
             "bonus": _number(row.bonus), "bonus_max": _number(row.bonus_max),
             "late_penalty": _number(row.penalty), "total": _number(row.total),
             "notes": "; ".join(row.notes), "look_at": "; ".join(row.flags)} for row in rows]
    _write(path, COLUMNS, told)


def write_canvas(rows: Sequence[Row], roster: Roster, path: Path, assignment: str,
                 column: str = "") -> None:
    """Canvas' own gradebook with a chapter's column filled in; the columns of others left out.

    column: such as "Chapter 4 (1234)"; where it is not given, the one that names the chapter.
    Raises UsageError when the roster is no gradebook of Canvas, or has no such column.
    """
    own = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
    if not {"Student", "ID"} <= {*roster.columns}:
        raise UsageError("cannot fill in Canvas' gradebook", "the class's table is not Canvas'",
                         "--roster with the CSV that Canvas exports")
    column = _column(roster, assignment, column)
    kept = [name for name in own if name in roster.columns]
    by_student = _of_chapter(rows, assignment)
    told = []
    for line, owner in zip(roster.rows, roster.owners):
        row = by_student.get(owner.id) if owner is not None else None
        value = _number(row.total) if row is not None else line.get(column, "") if (
            owner is None) else ""
        told.append({name: line[name] for name in kept} | {column: value})
    _write(path, [*kept, column], told)


def write_moodle(rows: Sequence[Row], roster: Roster, path: Path, assignment: str) -> None:
    """Moodle's own grading worksheet with grades and statuses filled in.

    Raises UsageError when the roster is no grading worksheet.
    """
    if not {"Identifier", "Grade"} <= {*roster.columns}:
        raise UsageError("cannot fill in Moodle's grading worksheet",
                         "the class's table is no worksheet of Moodle's",
                         "--roster with the grading worksheet that Moodle exports")
    by_student = _of_chapter(rows, assignment)
    told = []
    for line, owner in zip(roster.rows, roster.owners):
        row = by_student.get(owner.id) if owner is not None else None
        line = dict(line)
        if row is not None:
            most = float(line.get("Maximum Grade") or row.required_max or 100)
            scale = most / row.required_max if row.required_max else 1.0
            line["Grade"] = "" if row.total is None else _number(row.total * scale)
            if "Feedback comments" in line:
                line["Feedback comments"] = "; ".join([str(row.status), *row.notes])
        told.append(line)
    _write(path, roster.columns, told)


def write_gradescope(rows: Sequence[Row], records: Records, folder: Path) -> list[Path]:
    """A results.json for each submission with a number, as Gradescope's autograders write it.

    Hidden checks are there with title and points, and show after the grades are published.
    """
    written = []
    for row in rows:
        record = records.get(row.key) if row.total is not None else None
        if record is None:
            continue
        path = folder / folder_of(row.student) / row.assignment / "results.json"
        write_whole(path, json.dumps(_gradescope(row, record), indent=1, ensure_ascii=False))
        written.append(path)
    return written


def _gradescope(row: Row, record: Record) -> dict[str, Any]:
    tests = []
    for exercise in record.exercises:
        for check in exercise.checks:
            parts = [f"{name} {text}." for name, text in (
                ("Expected", check.expected), ("Found", check.found), ("Try", check.hint))
                if text]
            result = {"score": check.earned, "status": "passed" if (
                check.earned == check.points) else "failed"} if exercise.is_final else {}
            tests.append({"name": f"{exercise.exercise}: {check.title}", "number": "",
                          "max_score": check.points,
                          "output": " ".join([str(check.status), *parts]),
                          "output_format": "text", **result,
                          "visibility": "visible" if check.public else "after_published"})
        if exercise.problem:
            tests.append({"name": exercise.exercise, "score": 0.0, "max_score": exercise.total,
                          "output": exercise.problem, "output_format": "text",
                          "status": "failed", "visibility": "visible"})
    return {"score": row.total, "output": "; ".join([str(row.status), *row.notes]),
            "output_format": "text", "tests": tests}


def _of_chapter(rows: Sequence[Row], assignment: str) -> dict[str, Row]:
    return {row.student: row for row in rows if row.assignment == assignment}


def _column(roster: Roster, assignment: str, column: str) -> str:
    if column:
        found = [name for name in roster.columns if name == column]
    else:
        number = assignment.removeprefix("ch").lstrip("0")
        wanted = (assignment.casefold(), f"chapter {number}")
        found = [name for name in roster.columns
                 if any(name.casefold() == each or name.casefold().startswith(f"{each} ")
                        or name.casefold().startswith(f"{each}:") for each in wanted)]
    if len(found) != 1:
        raise UsageError(f"which column of Canvas' gradebook is {assignment}?",
                         f"{len(found)} columns are called so",
                         '--column "Chapter 4 (1234)", as the first line has it')
    return found[0]


def _number(value: float | None) -> str:
    return "" if value is None else f"{round(value, 2):g}"


def _write(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    file = io.StringIO(newline="")
    table = csv.DictWriter(file, columns, restval="", lineterminator="\r\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: _harmless(value) for name, value in row.items()})
    write_whole(path, file.getvalue())


def _harmless(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; learners name files as they like."""
    is_text = isinstance(value, str) and value.startswith(FORMULA)
    return f"'{value}" if is_text and not value.removeprefix("-")[:1].isdigit() else value
