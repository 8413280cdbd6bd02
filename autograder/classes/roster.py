"""Who is in the class: a table of students, as nbgrader, Canvas or Moodle exports it.

The table says under which number or name a platform files a student's submission, and who has
handed in nothing. Its other columns are kept: exports fill the same table in again.
"""

import csv
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gearworks.errors import GearworksError

ID_COLUMNS = ("SIS Login ID", "Username", "Login ID", "student_id", "id", "sid", "SIS User ID",
              "ID number", "Email address", "email", "Email", "ID", "Identifier")
NAME_COLUMNS = ("Student", "Full name", "name", "Name")
KEY_COLUMNS = ("ID", "Identifier", "SIS User ID", "ID number", "lms_user_id", "sid")


@dataclass(frozen=True)
class Student:
    """A student. id: as grades are filed. keys: what else a platform may call the student."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    keys: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip() or self.id


@dataclass(frozen=True)
class Roster:
    """The students of a class, with the table that they were read from."""

    students: tuple[Student, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[dict[str, str], ...] = ()       # of the table; those of no student included
    owners: tuple[Student | None, ...] = ()     # of the rows, one by one

    def find(self, *keys: str) -> Student | None:
        """The one student whom the first of these keys that any has names; None if several."""
        for key in map(folded, filter(None, keys)):
            found = [student for student in self.students
                     if key in student.keys or key == folded(student.id)]
            if found:
                return found[0] if len(found) == 1 else None
        return None


def read_roster(path: Path) -> Roster:
    """Read a class's table: nbgrader's, Canvas' gradebook or Moodle's grading worksheet.

    Raises GearworksError for a file that is no table of students.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [{name: value or "" for name, value in row.items() if name is not None}
                    for row in reader]
            columns = tuple(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GearworksError(f"cannot read the class's table {path}", str(error),
                             "export it again as CSV, in UTF-8") from None
    own = next((name for name in ID_COLUMNS if name in columns), None)
    if own is None:
        raise GearworksError(f"{path} is no table of students",
                             f"it has none of the columns {', '.join(ID_COLUMNS)}",
                             "export the gradebook of Canvas, the grading worksheet of Moodle, "
                             "or `nbgrader db student list`, as CSV")
    owners = tuple(_student(row, columns) for row in rows)
    students = tuple(student for student in owners if student is not None)
    repeated = {student.id for student in students
                if [each.id for each in students].count(student.id) > 1} if len(
                    {student.id for student in students}) < len(students) else set()
    if repeated:
        raise GearworksError(f"{path} names a student twice", f"{min(repeated)} in {own}",
                             "leave one of the rows")
    return Roster(students, columns, tuple(rows), owners)


def folded(text: str) -> str:
    """What names are compared by: no accents, no spaces, no capitals.

    >>> folded("Lovelace, Ádà")
    'lovelaceada'
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in plain if letter.isalnum())


def _student(row: dict[str, str], columns: tuple[str, ...]) -> Student | None:
    """A row's student; None for a row about something else, as Canvas' "Points Possible"."""
    named = next((row[name].strip() for name in NAME_COLUMNS if row.get(name, "").strip()), "")
    if named.startswith("Points Possible") or named == "Student, Test":
        return None
    id = next((row[name].strip() for name in ID_COLUMNS if row.get(name, "").strip()), "")
    if not id:
        return None
    first, last = row.get("first_name", ""), row.get("last_name", "")
    if named and not (first or last):
        last, comma, first = (part.strip() for part in named.partition(","))
        if not comma:
            first, _, last = named.rpartition(" ")
    email = next((row[name] for name in columns if name.casefold().startswith("email")), "")
    keys = {email, *_names(first, last), *(row.get(name, "") for name in KEY_COLUMNS)}
    numbers = {found for key in keys for found in re.findall(r"^Participant (\d+)$", key)}
    return Student(id, first, last, email, frozenset(map(folded, filter(None, keys | numbers))))


def _names(first: str, last: str) -> Iterator[str]:
    if first or last:
        yield f"{first} {last}"             # as Moodle's files have it
        yield f"{last} {first}"             # as Canvas' files have it
