"""How far a learner is: what public checks found of every exercise, as text or as JSON."""

import dataclasses
import hashlib
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autograder.chapters.chapter import Chapter
from autograder.checking.running import Outcome, Status
from autograder.judge.workers import Workers
from autograder.submissions.answers import Answer, answer_to, report_on
from autograder.submissions.attempts import Component
from autograder.submissions.intake import Notebook

WIDTH = 100

Bar = Callable[[Sequence[Any]], Iterable[Any]]


class Stage(StrEnum):
    """How far an exercise is."""

    NOT_STARTED = "not started"
    FAILING = "failing"
    NOT_CHECKED = "not checked"     # the machine was too slow, or the code waits for something
    PASSED = "passed"


@dataclass(frozen=True)
class ExerciseProgress:
    """An exercise.

    failing: the title of the first check that does not pass. found: what it found, in words.
    """

    exercise: str
    optional: bool
    stage: Stage
    points: float
    total: float
    failing: str = ""
    found: str = ""
    hint: str = ""
    notebook: str = ""
    cell: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChapterProgress:
    """A chapter: exercises, points out of 100, and as a bonus those of optional exercises."""

    chapter: str
    title: str
    exercises: tuple[ExerciseProgress, ...]

    @property
    def points(self) -> float:
        return sum(exercise.points for exercise in self.exercises if not exercise.optional)

    @property
    def total(self) -> float:
        return sum(exercise.total for exercise in self.exercises if not exercise.optional)

    @property
    def bonus(self) -> float:
        return sum(exercise.points for exercise in self.exercises if exercise.optional)


def measure(chapters: Sequence[Chapter], components: Sequence[Component],
            bar: Bar = iter) -> list[ChapterProgress]:
    """Run the public checks of everything that a learner has written.

    components: what was found of every component of the chapters. bar: what goes through the
    exercises, such as a progress bar. Never raises because of what the learner wrote.
    """
    exercises = [(chapter, exercise) for chapter in chapters for exercise in chapter.exercises]
    found: dict[str, list[ExerciseProgress]] = {chapter.stem: [] for chapter in chapters}
    with Workers() as workers:
        for chapter, exercise in bar(exercises):
            own = [part for part in components if part.chapter == chapter.stem]
            found[chapter.stem].append(_measured(answer_to(exercise, own), workers))
    return [ChapterProgress(chapter.stem, _title(chapter), tuple(found[chapter.stem]))
            for chapter in chapters]


def text(chapters: Sequence[ChapterProgress], notebooks: Sequence[Notebook] = ()) -> str:
    """Plain text that reads well aloud: one line for each exercise, its state first."""
    lines = []
    for chapter in chapters:
        bonus = f", and {chapter.bonus:g} as a bonus" if chapter.bonus else ""
        lines.append(f"{chapter.title}: {_points(chapter.points)} of {chapter.total:g} "
                     f"points{bonus}")
        for exercise in chapter.exercises:
            optional = " (optional)" if exercise.optional else ""
            score = f"{_points(exercise.points)} of {exercise.total:g}"
            lines.append(f"  {exercise.stage:<11}  {score:>10}  {exercise.exercise}{optional}")
            details = ([f"{exercise.failing} {exercise.found}".strip()]
                       if exercise.failing or exercise.found else [])
            details += [f"Try: {exercise.hint}"] if exercise.hint else []
            details += [f"Note: {note}" for note in exercise.notes]
            for detail in details:
                lines += textwrap.wrap(detail, WIDTH, initial_indent=" " * 15,
                                       subsequent_indent=" " * 17)
        lines.append("")
    for notebook in notebooks:
        lines += [f"{notebook.name}: {note}" for note in notebook.notes]
    if len(chapters) > 1:
        lines += [f"{_bar(chapter.points, chapter.total)} {_points(chapter.points):>5} of "
                  f"{chapter.total:g}  {chapter.title}" for chapter in chapters]
        lines.append(f"{_bar(*_sums(chapters))} {' of '.join(map(_points, _sums(chapters)))} "
                     "points in all")
    if (step := next_step(chapters)) is not None:
        where = f", in {step.notebook}, cell {step.cell}" if step.cell else ""
        lines.append(f"Next: {step.exercise}{where}")
    return "\n".join(lines).rstrip()


def next_step(chapters: Sequence[ChapterProgress]) -> ExerciseProgress | None:
    """The first required exercise that is not finished, in the chapter that is furthest on: the
    last one in which something has been written; None when all are finished."""
    begun = [chapter for chapter in chapters
             if any(each.stage is not Stage.NOT_STARTED for each in chapter.exercises)]
    for chapter in [*begun[-1:], *chapters]:
        for each in chapter.exercises:
            if each.stage is not Stage.PASSED and not each.optional:
                return each
    return None


def receipt(chapters: Sequence[ChapterProgress], files: Sequence[Path], made: datetime) -> str:
    """What a learner hands in to say how far they are: JSON, with the notebooks' hashes.

    It is from the learner's own machine and of the public checks alone, and says so: the grade
    is what the instructor's checks find in the notebooks of these hashes.
    """
    told = {"course": "gearworks", "version": version("gearworks"),
            "made": made.isoformat(timespec="seconds"),
            "counts": "public checks, run by the learner; the grade is the instructor's",
            "points": _sums(chapters)[0], "total": _sums(chapters)[1],
            "chapters": [{"chapter": chapter.chapter, "points": round(chapter.points, 2),
                          "total": chapter.total, "bonus": round(chapter.bonus, 2)}
                         for chapter in chapters],
            "notebooks": {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                          for path in files}}
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def _sums(chapters: Sequence[ChapterProgress]) -> tuple[float, float]:
    return (round(sum(chapter.points for chapter in chapters), 2),
            sum(chapter.total for chapter in chapters))


def _bar(points: float, total: float, width: int = 20) -> str:
    """Points as a bar in signs that every terminal has."""
    full = int(width * points / total) if total else 0
    return "#" * full + "." * (width - full)


def as_json(chapters: Sequence[ChapterProgress], notebooks: Sequence[Notebook] = ()) -> dict:
    """The same as one JSON object."""
    told = [{"chapter": chapter.chapter, "title": chapter.title, "points": chapter.points,
             "total": chapter.total, "bonus": chapter.bonus,
             "exercises": [dataclasses.asdict(exercise) for exercise in chapter.exercises]}
            for chapter in chapters]
    notes = {notebook.name: list(notebook.notes) for notebook in notebooks if notebook.notes}
    return {"chapters": told, "notes": notes}


def _points(points: float) -> str:
    return f"{round(points, 2):g}"


def _title(chapter: Chapter) -> str:
    texts = (cell.source for cell in chapter.cells if cell.kind == "markdown")
    heading = next(texts, "").split("\n")[0]
    return heading.removeprefix("# ") if heading.startswith("# ") else chapter.stem


def _measured(answer: Answer, workers: Workers) -> ExerciseProgress:
    exercise, notes = answer.exercise, answer.notes
    place = next((part for part in answer.components if part.cell is not None), None)
    where = {"notebook": place.notebook.name, "cell": place.cell.number} if place else {}

    def progress(stage: Stage, points: float = 0.0, **more: Any) -> ExerciseProgress:
        return ExerciseProgress(exercise.name, exercise.optional, stage, points, total,
                                notes=notes, **where, **more)

    total = 0.0
    try:
        report = report_on(answer, workers, public=True)
    except LookupError as error:
        notes = (str(error), *notes)
        return progress(Stage.NOT_STARTED)
    total, notes = report.total, tuple(filter(None, dict.fromkeys([*notes, report.level])))
    if report.problem:
        return progress(Stage.FAILING, found=report.problem)
    if not report.attempted:
        return progress(Stage.NOT_STARTED)
    first = next((outcome for outcome in report.outcomes
                  if outcome.status is not Status.PASSED), None)
    if first is None:
        return progress(Stage.PASSED, report.score)
    return progress(Stage.FAILING if report.is_final else Stage.NOT_CHECKED, report.score,
                    failing=first.title, found=_found(first), hint=first.hint)


def _found(outcome: Outcome) -> str:
    if outcome.status is Status.NOT_ATTEMPTED:
        return f"Found {outcome.found or 'a part that is not written yet'}."
    parts = [f"Expected {outcome.expected}."] if outcome.expected else []
    return " ".join([*parts, f"Found {outcome.found}."] if outcome.found else parts)
