"""The line at the top of a notebook: how far its chapter is. Each `check` renews it.

What earlier sessions found is read from the outputs that the notebook's file holds.
"""

import html
import json
import os
from collections.abc import Mapping
from pathlib import Path

from autograder.chapters.chapter import Chapter, Exercise
from autograder.checking import checks_of
from autograder.checking.report import Report

DISPLAY_ID = "gearworks-progress"


class Board:
    """A chapter's points. A notebook takes its HTML, and `str()` is its plain text.

    saved: points by exercise, as an earlier session found them.
    """

    def __init__(self, chapter: Chapter, saved: Mapping[str, float] | None = None):
        self.exercises = chapter.exercises
        self.totals = {each.name: float(sum(check.points for check in checks_of(each.name)))
                       for each in self.exercises}
        self.points = {name: points for name, points in (saved or {}).items()
                       if name in self.totals and 0 <= points <= self.totals[name]}

    def note(self, report: Report) -> bool:
        """Take what a check found; returns whether it is of this chapter."""
        if report.exercise not in self.totals:
            return False
        self.points[report.exercise] = report.score
        return True

    def __str__(self) -> str:
        required = [each for each in self.exercises if not each.optional]
        total = sum(self.totals[each.name] for each in required)
        points = sum(self.points.get(each.name, 0.0) for each in required)
        bonus = sum(self.points.get(each.name, 0.0) for each in self.exercises
                    if each.optional)
        full = sum(map(self._is_done, required))
        told = (f"This chapter: {_short(points)} of {_short(total)} points, "
                f"{full} of {len(required)} exercises finished")
        told += f", {_short(bonus)} points as a bonus" if bonus else ""
        following = next((each for each in required if not self._is_done(each)), None)
        return f"{told}. " + (f"Next: {following.name}" if following
                              else "All that is required is finished.")

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        rows = "".join(
            f"<li><code>{html.escape(each.name)}</code>{' (+)' if each.optional else ''}: "
            f"{_short(self.points.get(each.name, 0.0))} of "
            f"{_short(self.totals[each.name])}</li>"
            for each in self.exercises)
        return {"text/plain": str(self),
                "text/html": '<details class="gearworks-progress" style="color:inherit">'
                             f"<summary>{html.escape(str(self))}</summary>"
                             f'<ul style="margin:.3em 0">{rows}</ul></details>'}

    def _is_done(self, exercise: Exercise) -> bool:
        return self.points.get(exercise.name, 0.0) >= self.totals[exercise.name]


def saved_points(path: Path | None, chapter: Chapter) -> dict[str, float]:
    """Points by exercise, as the check cells in a notebook's file show them; {} without one."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"] if path else []
        shown = {name: _score(cell) for cell in cells for name in _names(cell)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {each.name: shown[each.check_id] for each in chapter.exercises
            if shown.get(each.check_id) is not None}


def notebook_path(chapter: str, namespace: Mapping[str, object]) -> Path | None:
    """Where the notebook lies that runs: as Jupyter's server or VS Code says, or here.

    namespace: of the notebook.
    """
    told = (os.environ.get("JPY_SESSION_NAME"), namespace.get("__vsc_ipynb_file__"),
            f"{chapter}.ipynb")
    for place in told:
        if isinstance(place, str) and place.endswith(".ipynb") and Path(place).is_file():
            return Path(place)
    return None


def _names(cell: dict) -> list[str]:
    """The ids of a cell, whoever has saved it."""
    metadata = cell.get("metadata", {})
    return [name for name in (cell.get("id"), metadata.get("id"),
                              metadata.get("nbgrader", {}).get("grade_id"))
            if isinstance(name, str)]


def _score(cell: dict) -> float | None:
    """What the last line of a check cell showed: a number, or nothing."""
    for output in cell.get("outputs", []):
        if output.get("output_type") == "execute_result":
            text = output["data"]["text/plain"]
            return float(text if isinstance(text, str) else "".join(text))
    return None


def _short(points: float) -> str:
    return f"{round(points, 2):g}"
