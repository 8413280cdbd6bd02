"""Writes results into nbgrader's own gradebook, by nbgrader's own functions.

So formgrader, manual grading, nbgrader's feedback and its exports go on from there. Points that
a person gave stay, and count instead of the judge's, as nbgrader has it.
"""

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry, SubmittedNotebook
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config import PyFileConfigLoader

from autograder.chapters.chapter import Chapter
from autograder.checking.running import Outcome, Report
from autograder.checking.running import Status as Ended
from autograder.classes.nbgrader_preprocessors import enter_report
from autograder.classes.record import ExerciseRecord, Record, Records, Status, write_whole
from autograder.classes.restored import restored
from autograder.classes.submitted import Submission, notebooks_of
from autograder.classes.table import Row, folder_of, moment, priced
from gearworks.errors import GearworksError


def directory_of(course: Path) -> CourseDirectory:
    """nbgrader's settings in a course's folder. Raises GearworksError."""
    try:
        config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    except Exception as error:
        raise GearworksError(f"cannot read {course / 'nbgrader_config.py'}",
                             f"{type(error).__name__}: {error}", "mend that file") from None
    config.CourseDirectory.root = str(course.resolve())
    return CourseDirectory(config=config)


@contextmanager
def opened(url: str, course_id: str) -> Iterator[Gradebook]:
    """nbgrader's gradebook at a URL. Raises GearworksError where the database refuses."""
    try:
        with warnings.catch_warnings(), Gradebook(url, course_id) as gradebook:
            # nbgrader makes a submission before it adds it, which SQLAlchemy remarks upon
            warnings.simplefilter("ignore", SAWarning)
            yield gradebook
    except SQLAlchemyError as error:
        raise GearworksError("cannot write to the gradebook",
                             str(getattr(error, "orig", None) or error).strip(),
                             "check its URL; an older nbgrader's is renewed by `nbgrader db "
                             "upgrade`") from None


def require_released(gradebook: Gradebook, assignments: Sequence[str]) -> None:
    """Raise GearworksError unless the gradebook knows these assignments."""
    for assignment in assignments:
        try:
            gradebook.find_assignment(assignment)
        except MissingEntry:
            raise GearworksError(f"the gradebook does not know {assignment}",
                                 "nbgrader has not released it in this course",
                                 f"nbgrader generate_assignment {assignment}") from None


def merge(rows: Sequence[Row], records: Records, chapters: Sequence[Chapter],
          gradebook: Gradebook) -> list[Row]:
    """Enter all results; returns the rows as the gradebook has them then.

    A result without a number leaves the judge's scores empty. Doing it twice changes nothing.
    """
    optional = {exercise.check_id for chapter in chapters for exercise in chapter.exercises
                if exercise.optional}
    known = {chapter.stem for chapter in chapters}
    merged = []
    for row in rows:
        first, _, last = row.name.rpartition(" ")
        names = {"first_name": first, "last_name": last, "email": row.email}
        gradebook.update_or_create_student(row.student, **{
            name: value for name, value in names.items() if value})
        if row.is_missing or row.chapter not in known:
            merged.append(row)
        else:
            record = records.get(row.key) or Record(row.chapter, row.status)
            merged.append(_merged(row, record, optional, gradebook))
    return merged


def write_autograded(rows: Sequence[Row], submissions: Sequence[Submission], records: Records,
                     chapters: Sequence[Chapter], course: CourseDirectory) -> None:
    """Write the notebooks that formgrader and nbgrader's feedback show, with their results.

    Those of results without a number are there, too, as far as they can be read, so that a
    person can look at them and give points.
    """
    by_key = {(row.student, row.assignment): row for row in rows}
    for submission in submissions:
        row = by_key.get((submission.student, submission.assignment))
        if row is None or submission.chapter is None:
            continue
        notebook = restored(notebooks_of(submission), submission.chapter, chapters,
                            release_of(submission.chapter, course))
        record = records.get(row.key)
        reports = {each.check_id: _report(each) for each in record.exercises} if record else {}
        for cell in notebook.cells:
            grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
            if grade_id in reports:
                enter_report(cell, reports[grade_id])
        place = Path(course.format_path(course.autograded_directory, folder_of(row.student),
                                        row.assignment))
        write_whole(place / f"{submission.chapter.stem}.ipynb", nbformat.writes(notebook))
        if submission.submitted is not None:
            write_whole(place / "timestamp.txt", f"{submission.submitted.isoformat()}\n")


def release_of(chapter: Chapter, course: CourseDirectory) -> NotebookNode:
    """A chapter's notebook as it was given out. Raises GearworksError where it was not."""
    path = Path(course.format_path(course.release_directory, ".", chapter.assignment)
                ) / f"{chapter.stem}.ipynb"
    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise GearworksError(f"there is no {path}", str(error),
                             f"nbgrader generate_assignment {chapter.assignment}") from None


def _merged(row: Row, record: Record, optional: Collection[str], gradebook: Gradebook) -> Row:
    when = moment(row.submitted)
    timestamp = {"timestamp": when.astimezone(UTC).isoformat()} if when is not None else {}
    gradebook.update_or_create_submission(row.assignment, row.student, **timestamp)
    notebook = gradebook.find_submission_notebook(row.chapter, row.assignment, row.student)
    judged = record.exercises if record.status.has_points else ()
    scores = {each.check_id: each.points / each.total if each.total else 0.0
              for each in judged if each.is_final}
    for grade in notebook.grades:
        share = scores.get(grade.name)
        grade.auto_score = None if share is None else round(share * grade.max_score, 6)
        grade.needs_manual_grade = grade.manual_score is not None or grade.auto_score is None
    row = _as_entered(row, notebook, optional, {each.check_id for each in judged})
    notebook.late_submission_penalty = row.penalty or None
    gradebook.db.commit()
    return row


def _as_entered(row: Row, notebook: SubmittedNotebook, optional: Collection[str],
                judged: Collection[str]) -> Row:
    """The row with the points that the gradebook has, a person's before the judge's.

    judged: the grade ids of what is the judge's to grade. Where other questions wait for a
    person, there is no number yet.
    """
    grades = notebook.grades
    waiting = sum(grade.manual_score is None for grade in grades if grade.name not in judged)
    if judged and waiting:
        return replace(row, status=Status.REVIEW, required=None, bonus=None, penalty=None,
                       total=None, notes=(*row.notes,
                                          f"waits for a person's points: {waiting}"))
    by_hand = [grade for grade in grades if grade.manual_score is not None
               or grade.extra_credit]
    is_open = any(grade.auto_score is None and grade.manual_score is None for grade in grades
                  if grade.name not in judged)
    if not by_hand or is_open:
        return replace(row, manual=bool(by_hand))
    required = sum(grade.score for grade in grades if grade.name not in optional)
    bonus = sum(grade.score for grade in grades if grade.name in optional)
    before = min((row.required or 0.0) + (row.bonus or 0.0), row.required_max)
    penalty = (row.penalty or 0.0) * (
        min(required + bonus, row.required_max) / before if before else 1.0)
    most = sum(grade.max_score for grade in grades if grade.name not in optional)
    row = replace(row, manual=True, required_max=most, status=row.status if (
        row.status.has_points) else Status.GRADED)
    return priced(row, required, bonus, penalty)


def _report(record: ExerciseRecord) -> Report:
    """The report that a record was made from, as far as it is shown."""
    outcomes = tuple(Outcome(check.name, check.title, check.points, check.public,
                             Ended(check.status), check.error, check.expected, check.found,
                             check.hint) for check in record.checks)
    return Report(record.exercise, outcomes, record.total, None, problem=record.problem)
