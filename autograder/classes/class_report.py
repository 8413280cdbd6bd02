"""The class at a glance: one HTML page about all results.

It goes through the records one by one, and keeps counts, not records.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autograder.checking.running import Status as Outcome
from autograder.classes.pages import number, page
from autograder.classes.record import Record, Records, Status
from autograder.classes.table import Row
from autograder.variants.mutation import mutants_of

BARS = 10                   # of the histogram of totals
MOST_CHECKS = 15            # that failed most often
KINDS = ("full", "part", "none", "open")


@dataclass
class _Exercise:
    name: str
    optional: bool
    total: float
    points: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def told(self) -> dict[str, Any]:
        tried = sum(self.counts.values())
        return {"name": self.name, "optional": self.optional, "total": number(self.total),
                "mean": number(self.points / tried), **{kind: self.counts[kind]
                                                         for kind in KINDS},
                "shares": [(kind, round(100 * self.counts[kind] / tried, 2))
                           for kind in KINDS]}


@dataclass
class _Chapter:
    """Counts of one chapter's records."""

    exercises: dict[str, _Exercise] = field(default_factory=dict)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    mistakes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, record: Record) -> None:
        for each in filter(lambda each: each.is_final, record.exercises):
            own = self.exercises.setdefault(each.exercise, _Exercise(
                each.exercise, each.optional, each.total))
            own.points += each.points
            kind = ("open" if not each.attempted else "full" if each.points >= each.total
                    else "part" if each.points else "none")
            own.counts[kind] += 1
            if not each.attempted:
                continue
            for check in each.checks:
                self.tried[each.exercise, check.title] += 1
                self.failed[each.exercise, check.title] += check.status != Outcome.PASSED
            if each.mistake:
                self.mistakes[each.exercise, each.mistake] += 1


def class_report(rows: Sequence[Row], records: Records, made: datetime) -> str:
    """The page about these results."""
    chapters = []
    for assignment in sorted({row.assignment for row in rows}):
        own = [row for row in rows if row.assignment == assignment]
        counts = _Chapter()
        for row in own:
            record = records.get(row.key) if row.status.has_points else None
            if record is not None:
                counts.add(record)
        chapters.append(_chapter(assignment, own, counts))
    return page("report", chapters=chapters, students=len({row.student for row in rows}),
                results=sum(not row.is_missing for row in rows),
                made=made.strftime("%Y-%m-%d %H:%M"))


def _chapter(assignment: str, rows: Sequence[Row], counts: _Chapter) -> dict[str, Any]:
    totals = [row.total for row in rows if row.total is not None]
    most = max((row.required_max for row in rows), default=0.0)
    failing = [(exercise, title, count, counts.tried[exercise, title])
               for (exercise, title), count in counts.failed.most_common(MOST_CHECKS) if count]
    told = {"assignment": assignment or "none", "stem": next(
                (row.chapter for row in rows if row.chapter), ""),
            "statuses": [(status, count) for status in Status
                         if (count := sum(row.status is status for row in rows))],
            "totals": totals, "failing": failing,
            "exercises": [each.told() for each in counts.exercises.values()],
            "mistakes": [(exercise, _story(exercise, name), count) for (exercise, name), count
                         in counts.mistakes.most_common()],
            "looks": [{"student": _named(row), "status": row.status, "why": why,
                       "total": number(row.total)} for row in rows
                      if (why := _why_look(row))],
            "missing": [_named(row) for row in rows if row.is_missing],
            "rows": [{"student": _named(row), "status": row.status} | {
                name: number(getattr(row, name))
                for name in ("required", "bonus", "penalty", "total")} for row in rows]}
    if totals:
        told |= {"mean": number(statistics.fmean(totals)), "most": number(most),
                 "median": number(statistics.median(totals)), "lowest": number(min(totals)),
                 "highest": number(max(totals)), "histogram": _histogram(totals, most)}
    return told


def _histogram(totals: Iterable[float], most: float) -> list[tuple[str, int, float]]:
    """Bars from 0 to the most: their names, how many are in each, and the share of the
    longest. The last holds the full marks, too."""
    width = most / BARS or 1.0
    counts = Counter(min(int(total // width), BARS - 1) for total in totals)
    longest = max(counts.values(), default=1)
    return [(f"{number(at * width)} to {number((at + 1) * width)}", counts[at],
             round(100 * counts[at] / longest, 2)) for at in range(BARS)]


def _why_look(row: Row) -> str:
    """Why somebody should look at a result; "" for most."""
    if row.is_missing:
        return ""
    reasons = [*row.notes, *row.flags]
    if row.status.has_points and not row.required and not row.bonus:
        reasons.append("no points at all")
    if row.status is Status.PARTIAL:
        reasons.append("some exercises could not be read or graded, or do not load")
    return "; ".join(reasons) or (str(row.status) if row.status is not Status.GRADED else "")


def _named(row: Row) -> str:
    return row.student if row.name in ("", row.student) else f"{row.name} ({row.student})"


def _story(exercise: str, name: str) -> str:
    return next((mutant.story for mutant in mutants_of(exercise) if mutant.name == name), name)
