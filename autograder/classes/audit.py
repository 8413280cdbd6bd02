"""The audit log: who changed what about grades, when, and from what to what.

One JSON object a line, each with the hash of the line before it: a line that is changed or
taken out later shows. Nothing is ever taken out by the grader.
"""

import getpass
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autograder.classes.table import Row

FIELDS = ("status", "required", "bonus", "penalty", "total")


class AuditLog:
    """A log in a file that only grows."""

    def __init__(self, path: Path):
        self._path = path
        lines = _lines(path)
        self._last = _hash(lines[-1]) if lines else ""

    def add(self, event: str, **told: Any) -> None:
        """Write down an event. It is on the disk when this returns."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "unknown"
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"),
                           "user": user, "machine": platform.node(), "event": event, **told,
                           "before": self._last}, ensure_ascii=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._last = _hash(line)

    def add_changes(self, before: Sequence[Row], after: Sequence[Row]) -> int:
        """Write down every result that is new or another one. Returns how many there are."""
        old = {(row.student, row.assignment): row for row in before}
        changed = 0
        for row in after:
            was = old.get((row.student, row.assignment))
            told = _told(row)
            if was is not None and _told(was) == told:
                continue
            changed += 1
            self.add("result", student=row.student, assignment=row.assignment, now=told,
                     was=_told(was) if was is not None else None, record=row.key)
        return changed


def broken_at(path: Path) -> int | None:
    """The number, from 1, of the first line that does not follow from those before it."""
    last = ""
    for number, line in enumerate(_lines(path), start=1):
        try:
            if json.loads(line)["before"] != last:
                return number
        except (ValueError, KeyError, TypeError):
            return number
        last = _hash(line)
    return None


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").splitlines()


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def _told(row: Row) -> Mapping[str, Any]:
    return {name: value if (value := getattr(row, name)) is None or isinstance(value, float)
            else str(value) for name in FIELDS}
