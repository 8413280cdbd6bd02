"""What was found of a submission, and the files that keep it.

A record is one JSON file, named by a hash of everything that it follows from: what was handed
in, the checks, the rest of the grader and of the machine, and the course's secret. So a record
that is there need never be made again, and one that something has changed for is not found.
It knows nothing of the student: of two equal submissions it is the same.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autograder.checking.running import Status as Ended

VERSION = 1


class Status(StrEnum):
    """What came of a submission."""

    GRADED = "graded"
    REPAIRED = "graded with repairs"
    PARTIAL = "partial"         # some exercises could not be read or graded, or do not load
    REVIEW = "needs review"                 # nothing of the chapter is in it
    UNREADABLE = "unreadable"
    NOT_SUBMITTED = "not submitted"
    INFRASTRUCTURE = "infrastructure error"     # the machine's fault, or perhaps so: try again

    @property
    def has_points(self) -> bool:
        """Whether it goes with a number; where it does not, there is no number, nor a 0."""
        return self in (Status.GRADED, Status.REPAIRED, Status.PARTIAL)


@dataclass(frozen=True)
class CheckRecord:
    """What came of one check. Of a hidden one there is its title and the kind of error."""

    name: str
    title: str
    points: float
    earned: float
    public: bool
    status: str
    error: str = ""
    expected: str = ""
    found: str = ""
    hint: str = ""


@dataclass(frozen=True)
class ExerciseRecord:
    """What came of an exercise.

    problem: why none of its checks could run. mistake: the name of the known mistake that
    explains what public checks saw. flags: what an instructor may want to look at, and no
    learner is shown.
    """

    exercise: str
    check_id: str
    optional: bool
    attempted: bool
    points: float
    total: float
    place: str = ""
    problem: str = ""
    mistake: str = ""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    checks: tuple[CheckRecord, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether its points are a result. Else there are none yet, which is no 0."""
        return all(check.status != Ended.NOT_GRADED for check in self.checks)


@dataclass(frozen=True)
class Record:
    """What came of a submission for a chapter.

    notes: what was repaired, or is wrong with it. key: of its file, once it has one.
    """

    chapter: str
    status: Status
    notes: tuple[str, ...] = ()
    exercises: tuple[ExerciseRecord, ...] = ()
    key: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the next run may leave it as it is."""
        return self.status is not Status.INFRASTRUCTURE and all(
            each.is_final for each in self.exercises)

    @property
    def required(self) -> float:
        return sum(each.points for each in self.exercises if not each.optional)

    @property
    def required_max(self) -> float:
        return sum(each.total for each in self.exercises if not each.optional)

    @property
    def bonus(self) -> float:
        return sum(each.points for each in self.exercises if each.optional)

    @property
    def bonus_max(self) -> float:
        return sum(each.total for each in self.exercises if each.optional)

    @property
    def points(self) -> float | None:
        """Required and bonus points together, at most the required ones; None for no number."""
        if not self.status.has_points:
            return None
        return min(self.required + self.bonus, self.required_max)

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Raises ValueError for what is no record of this version."""
        told = json.loads(text)
        try:
            if told.pop("version") != VERSION:
                raise ValueError("a record of another version")
            exercises = tuple(
                _built(ExerciseRecord, each | {"checks": tuple(
                    _built(CheckRecord, check) for check in each["checks"])})
                for each in told["exercises"])
            return _built(cls, told | {"exercises": exercises,
                                       "status": Status(told["status"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no record: {error}") from None


def _built(kind: type, told: dict[str, Any]) -> Any:
    known = {each.name for each in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value
                   for name, value in told.items() if name in known})


class Records:
    """A folder of records."""

    def __init__(self, folder: Path):
        self._folder = folder

    def path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> Record | None:
        """The record of a key; None where there is none, or one that is worth making again."""
        try:
            record = Record.from_json(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_own = record.key == key and record.status is not Status.INFRASTRUCTURE
        return record if is_own else None

    def put(self, key: str, record: Record) -> Record:
        """Write a record: after it is there, whole; or not at all. Returns it with its key."""
        record = replace(record, key=key)
        write_whole(self.path(key), record.to_json())
        return record


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old text or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, draft = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with open(number, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
