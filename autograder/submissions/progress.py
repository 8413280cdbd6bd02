"""How far a learner is: what public checks found of every exercise, as text or as JSON.

The checks run in a child process, one exercise after the other, on the learner's code with the
reference for everything else. Whatever the code does (exit, loop, eat its own exceptions) ends
as the outcome of the check that met it, and a new child goes on with the next exercise.
"""

import dataclasses
import importlib
import linecache
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autograder.chapters.chapter import Chapter
from autograder.checking import Check, checks_of
from autograder.checking.levels import level_of, why_not_here
from autograder.checking.running import (Outcome, Report, Status, collected_remarks, fresh_seed,
                                         run_check)
from autograder.processes.child import Child, pipes
from autograder.reference.names import home_of, names_of
from autograder.submissions.attempts import Component, State
from autograder.submissions.grafting import code_of
from autograder.submissions.intake import Notebook
from gearworks.errors import GearworksError

EXERCISE_SECONDS = 20       # of processor time, for the checks of one exercise together
GRACE_SECONDS = 5           # after it a child ends itself, whatever the learner's code catches
SILENCE_SECONDS = 300       # by the wall clock: for code that waits, or stops all else there
TOO_LONG = 77               # the exit code of a child that ended itself
WIDTH = 100

Bar = Callable[[Sequence[Any]], Iterable[Any]]


class Stage(StrEnum):
    """How far an exercise is."""

    NOT_STARTED = "not started"
    FAILING = "failing"
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
    with Child("autograder.submissions.progress") as child:
        for chapter, exercise in bar(exercises):
            own = [part for part in components
                   if part.chapter == chapter.stem and part.exercise == exercise]
            found[chapter.stem].append(_measured(own, components, child))
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
    return "\n".join(lines).rstrip()


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


def _measured(own: Sequence[Component], components: Sequence[Component],
              child: Child) -> ExerciseProgress:
    exercise = own[0].exercise
    notes = tuple(dict.fromkeys(note for part in own for note in part.notes))
    place = next((part for part in own if part.cell is not None), own[0])
    try:
        checks = checks_of(exercise.name)
    except LookupError as error:
        return ExerciseProgress(exercise.name, exercise.optional, Stage.NOT_STARTED, 0.0, 0.0,
                                notes=(str(error), *notes))
    total = float(sum(check.points for check in checks))

    def progress(stage: Stage, points: float = 0.0, **more: Any) -> ExerciseProgress:
        told = more.pop("notes", notes)
        if place.cell is not None:
            more |= {"notebook": place.notebook.name, "cell": place.cell.number}
        return ExerciseProgress(exercise.name, exercise.optional, stage, points, total,
                                notes=tuple(dict.fromkeys(told)), **more)

    started = [part for part in own if part.state is not State.NOT_STARTED]
    if not started:
        return progress(Stage.NOT_STARTED)
    written = [part for part in started if part.statements]
    if not written:
        return progress(Stage.FAILING, found="The cell is no Python.")
    try:
        code, more = code_of(exercise.module, written, components)
    except (GearworksError, SyntaxError, ValueError, RecursionError) as error:
        return progress(Stage.FAILING, found=f"What it needs could not be gathered: {error}.")
    if not_here := why_not_here(exercise.name):
        return progress(Stage.FAILING, found=f"It cannot be checked here: {not_here}",
                        notes=(*notes, *more))
    notes += tuple(filter(None, [*more, level_of(exercise.name)]))
    missing = [part.name for part in own if part not in written]
    task = _Task(exercise.name, exercise.module, place.place, code, tuple(missing),
                 EXERCISE_SECONDS, fresh_seed())
    report = _report(task, checks, child)
    first = next((outcome for outcome in report.outcomes
                  if outcome.status is not Status.PASSED), None)
    if first is None and not report.problem:
        return progress(Stage.PASSED, report.score, notes=notes)
    if first is None or report.problem:
        return progress(Stage.FAILING, found=report.problem, notes=notes)
    if not report.attempted:
        return progress(Stage.NOT_STARTED, notes=notes)
    return progress(Stage.FAILING, report.score, failing=first.title, found=_found(first),
                    hint=first.hint, notes=notes)


def _found(outcome: Outcome) -> str:
    if outcome.status is Status.NOT_ATTEMPTED:
        return f"Found {outcome.found or 'a part that is not written yet'}."
    parts = [f"Expected {outcome.expected}."] if outcome.expected else []
    return " ".join([*parts, f"Found {outcome.found}."] if outcome.found else parts)


@dataclass(frozen=True)
class _Task:
    """What the child is to check.

    code: the learner's, as it would stand in the module. missing: names that it lacks.
    """

    exercise: str
    module: str
    place: str
    code: str
    missing: tuple[str, ...]
    seconds: float
    seed: int


def _report(task: _Task, checks: Sequence[Check], child: Child) -> Report:
    """What the public checks found, as far as they came.

    Code that works leaves its process in order, as a rule; of other code one cannot know what
    it has closed or replaced, so its child ends with it.
    """
    public = [check for check in checks if check.public]
    total = float(sum(check.points for check in checks))
    outcomes: list[Outcome] = []
    begun = False
    child.tell(dataclasses.asdict(task))
    while (news := child.hear(SILENCE_SECONDS)) is not None:
        if "outcome" in news:
            told = news["outcome"]
            outcomes.append(Outcome(**told | {"status": Status(told["status"])}))
        elif "check" in news:
            begun = True
        elif "problem" in news or "end" in news:
            problem = news.get("problem", "")
            if problem or any(outcome.status is not Status.PASSED for outcome in outcomes):
                child.end()
            return Report(task.exercise, tuple(outcomes), total, problem=problem)
    too_long = child.end() in (TOO_LONG, None)
    why = (f"no end after {task.seconds:g} seconds of computing" if too_long
           else "that it ended the Python that ran it")
    if not begun:
        problem = f"Its cell was run, and found was {why}."
        return Report(task.exercise, (), total, problem=problem)
    status = Status.OUT_OF_TIME if too_long else Status.RAISED
    outcomes += [Outcome(check.name, check.title, check.points, True, status, found=why)
                 for check in public[len(outcomes):]]
    return Report(task.exercise, tuple(outcomes), total)


def _subjects(task: _Task) -> list[Any]:
    """The learner's definitions, among the names of the reference's module."""
    module = importlib.import_module(home_of(task.module))
    namespace = dict(vars(module))
    for name in task.missing:
        namespace[name] = _not_written(f"{task.module}.{name}")
    filename = f"<cell of {task.place}>"
    lines = task.code.splitlines(keepends=True)
    linecache.cache[filename] = (len(task.code), None, lines, filename)
    exec(compile(task.code, filename, "exec", dont_inherit=True), namespace)
    return [namespace[name] for name in names_of(task.exercise)]


def _not_written(component: str) -> Callable:
    def stub(*arguments: Any, **named: Any) -> None:
        raise NotImplementedError(f"{component}: write this function")
    return stub


def _run(task: _Task, say: Callable[[dict], None]) -> None:
    public = [check for check in checks_of(task.exercise) if check.public]
    start = time.process_time()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.2):
            if time.process_time() - start > task.seconds + GRACE_SECONDS:
                os._exit(TOO_LONG)

    threading.Thread(target=watch, daemon=True).start()
    try:
        with collected_remarks():
            subjects = _subjects(task)
    except BaseException as error:
        finished.set()
        say({"problem": f"Its cell does not run: {type(error).__name__}: {error}."})
        return
    for check in public:
        say({"check": check.name})
        left = task.seconds - (time.process_time() - start)
        with collected_remarks():
            outcome = run_check(check, subjects, task.seed, seconds=max(0.1, left))
        say({"outcome": dataclasses.asdict(outcome)})
    finished.set()
    say({"end": True})


def main() -> None:
    """Run the tasks that come in."""
    told, say = pipes()
    for fields in told:
        _run(_Task(**fields | {"missing": tuple(fields["missing"])}), say)


if __name__ == "__main__":
    main()
