"""Grades what one student handed in for one chapter: from notebooks to a record.

No notebook is run. What the learner wrote is taken out of the cells and judged, exercise by
exercise, as `autograder progress` and nbgrader's preprocessor do it, by the same functions.
"""

from collections.abc import Sequence

from autograder.chapters.chapter import Chapter
from autograder.checking.levels import why_not_here
from autograder.checking.running import Report
from autograder.classes.record import CheckRecord, ExerciseRecord, Record, Status
from autograder.judge.memory import Memory
from autograder.judge.secret import graded_seed
from autograder.judge.workers import Workers
from autograder.submissions.answers import Answer, answer_to, report_on
from autograder.submissions.attempts import ABSENT, State, chapter_of, find_components
from autograder.submissions.intake import Notebook


def grade(notebooks: Sequence[Notebook], chapter: Chapter | None, chapters: Sequence[Chapter],
          workers: Workers, secret: str, memory: Memory | None = None) -> Record:
    """What these notebooks are worth for a chapter. chapters: all of the course."""
    stem = chapter.stem if chapter is not None else ""
    if not any(cell.kind == "code" for notebook in notebooks for cell in notebook.cells):
        return Record(stem, Status.UNREADABLE, _told(notebooks))
    own = [each for each in notebooks if chapter_of(each, chapters) is chapter]
    if chapter is None or not own:
        others = dict.fromkeys(found.stem for each in notebooks
                               if (found := chapter_of(each, chapters)) is not None)
        why = (f"a notebook of {' and '.join(others)}, not of {stem or 'one chapter'}" if others
               else "nothing in it is of this course")
        return Record(stem, Status.REVIEW, _told(notebooks, why))
    components = find_components([chapter], own)
    if all(ABSENT in part.notes for part in components):      # its name alone is the chapter's
        return Record(stem, Status.REVIEW, _told(own, f"nothing in it is of {stem}"))
    answers = [answer_to(exercise, components) for exercise in chapter.exercises]
    reports = [report_on(answer, workers, seed=graded_seed(secret, answer.exercise.name),
                         diagnose=True, memory=memory) for answer in answers]
    used = [notebook for notebook in own
            if any(part.notebook is notebook for part in components)]
    notes = _told(used or own)
    status = _status(answers, reports, used or own, notes)
    notes += tuple(f"{report.exercise} could not be graded: it waited, or the machine was "
                   "busy; the next run tries again" for report in reports
                   if not report.is_final)
    return Record(stem, status, notes, tuple(map(_exercise, answers, reports)))


def _told(notebooks: Sequence[Notebook], *more: str) -> tuple[str, ...]:
    notes = [f"{notebook.name}: {note}" for notebook in notebooks for note in notebook.notes]
    return tuple(dict.fromkeys([*more, *notes]))


def _status(answers: Sequence[Answer], reports: Sequence[Report],
            notebooks: Sequence[Notebook], notes: Sequence[str]) -> Status:
    started = [report for answer, report in zip(answers, reports) if answer.is_started]
    if any(why_not_here(report.exercise) for report in started) or (
            started and not any(report.is_final for report in started)):
        return Status.INFRASTRUCTURE
    lost = [answer for answer in answers
            if not answer.is_started and answer.components[0].notes]
    is_damaged = any(notebook.is_damaged for notebook in notebooks)
    if is_damaged and not any(answer.is_started for answer in answers):
        return Status.REVIEW
    if any(report.problem or not report.is_final for report in reports) or (
            is_damaged and lost):
        return Status.PARTIAL
    repaired = notes or any(part.notes for answer in answers for part in answer.components)
    return Status.REPAIRED if repaired else Status.GRADED


def _exercise(answer: Answer, report: Report) -> ExerciseRecord:
    checks = tuple(CheckRecord(outcome.name, outcome.title, outcome.points, outcome.earned,
                               outcome.public, str(outcome.status), outcome.error,
                               outcome.expected, outcome.found, outcome.hint)
                   for outcome in report.outcomes)
    exercise = answer.exercise
    place = next((part.place for part in answer.components
                  if part.state is not State.NOT_STARTED), "")
    notes = tuple(filter(None, dict.fromkeys([*answer.notes, report.level])))
    return ExerciseRecord(exercise.name, exercise.check_id, exercise.optional,
                          answer.is_started and report.attempted or bool(report.problem),
                          round(report.score, 6), report.total, place, report.problem,
                          report.mistake, notes, report.flags, checks)
