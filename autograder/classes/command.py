"""`autograder grade`: what its options mean, and in which order things are done."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from autograder.chapters.chapter import Chapter
from autograder.chapters.outline import outline
from autograder.classes.class_run import Bar, Results, grade_class, publish, summary
from autograder.classes.engine import Cluster, Course, Engine, Here
from autograder.classes.exports import write_canvas, write_gradescope, write_moodle
from autograder.classes.late import late_policy
from autograder.classes.roster import Roster, read_roster
from autograder.classes.similarity import export
from autograder.classes.submitted import Submission, find_submissions
from autograder.classes.table import Row
from autograder.judge.secret import course_secret
from autograder.sandbox.choice import sandbox_of_a_class
from gearworks.errors import UsageError


def grade(options: argparse.Namespace, bar: Bar) -> Iterator[str]:
    """Grade a class as the command's options have it; yields what is to be said.

    Raises UsageError and GearworksError before anything is graded, where they can be known.
    """
    chapters = outline()
    chapter = _chapter(options.chapter, chapters)
    late = late_policy(options.late, options.due)
    roster = read_roster(options.roster) if options.roster else Roster()
    submissions = find_submissions(options.submitted, chapters, roster=roster, chapter=chapter)
    assignments = sorted({each.assignment for each in submissions if each.assignment})
    if (options.canvas or options.moodle) and len(assignments) != 1:
        raise UsageError("an export for Canvas or Moodle holds one chapter",
                         f"these submissions are of {', '.join(assignments) or 'none'}",
                         "--chapter with the number of one")
    sandbox = sandbox_of_a_class(options.sandbox)
    folder = _course_folder(options)
    results = Results(options.to)
    gradebook = _gradebook(options, folder, assignments)
    course = Course(chapters, course_secret(folder or _made(options.to)), sandbox)
    with results.locked():
        results.audit.add("run", submitted=str(options.submitted), submissions=len(submissions),
                          late=options.late, due=options.due, again=options.again,
                          sandbox=sandbox.name)
        rows = grade_class(submissions, course, results,
                           _engine(options, course, len(submissions)), roster=roster,
                           late=late, again=options.again, bar=bar)
        if gradebook is not None:
            rows = gradebook(rows, submissions, results)
            results.audit.add("merged", rows=len(rows), course=str(folder or ""))
        publish(rows, results, datetime.now())
        if options.canvas:
            write_canvas(rows, roster, options.canvas, assignments[0], options.column)
        if options.moodle:
            write_moodle(rows, roster, options.moodle, assignments[0])
        if options.gradescope:
            write_gradescope(rows, results.records, options.gradescope)
        results.audit.add("published", rows=len(rows), canvas=str(options.canvas or ""),
                          moodle=str(options.moodle or ""),
                          gradescope=str(options.gradescope or ""))
    yield summary(rows)
    yield ""
    for name in ("grades.csv", "report.html", "feedback"):
        yield f"wrote {options.to / name}"


def collect(options: argparse.Namespace) -> Iterator[str]:
    """Put submissions into a course of nbgrader's; yields a line for each that was repaired."""
    from autograder.classes import collecting, gradebook      # nbgrader is slow to import

    folder = _course_folder(options)
    if folder is None:
        raise UsageError("which course of nbgrader's?", "SUBMITTED is in none",
                         "--course with its folder")
    chapters = outline()
    submissions = find_submissions(
        options.submitted, chapters, chapter=_chapter(options.chapter, chapters),
        roster=read_roster(options.roster) if options.roster else Roster())
    count = 0
    for submission, note in collecting.collect(submissions, chapters,
                                               gradebook.directory_of(folder)):
        count += not note.startswith("left out")
        if note:
            yield f"{submission.student}, {submission.assignment or 'no chapter'}: {note}"
    yield f"{count} of {len(submissions)} submissions are in {folder / 'submitted'}"


def similarity(options: argparse.Namespace) -> Iterator[str]:
    """Lay out what a class wrote for JPlag and Dolos; yields how these are started."""
    chapters = outline()
    submissions = find_submissions(
        options.submitted, chapters, chapter=_chapter(options.chapter, chapters),
        roster=read_roster(options.roster) if options.roster else Roster())
    yield from export(submissions, chapters, options.to)


def _engine(options: argparse.Namespace, course: Course, submissions: int) -> Engine:
    jobs = min(options.jobs or os.cpu_count() or 1, max(1, submissions))
    if jobs == 1 and not options.scheduler:
        return Here(course)
    return Cluster(course, jobs, options.scheduler)


def _gradebook(options: argparse.Namespace, folder: Path | None,
               assignments: Sequence[str]) -> Callable[..., list[Row]] | None:
    """What enters results into nbgrader's gradebook; None where there is none.

    Raises GearworksError, before anything is graded, where that could not work.
    """
    if folder is None and not options.gradebook:
        return None
    from autograder.classes import gradebook as books         # nbgrader is slow to import

    course = books.directory_of(folder) if folder is not None else None
    url = options.gradebook or course.db_url
    name = course.course_id if course is not None else "gearworks"
    chapters = outline()
    with books.opened(url, name) as opened:
        books.require_released(opened, assignments)
    if course is not None:
        for chapter in chapters:
            if chapter.assignment in assignments:
                books.release_of(chapter, course)

    def enter(rows: list[Row], submissions: Sequence[Submission],
              results: Results) -> list[Row]:
        with books.opened(url, name) as opened:
            rows = books.merge(rows, results.records, chapters, opened)
        if course is not None:
            books.write_autograded(rows, submissions, results.records, chapters, course)
        return rows

    return enter


def _course_folder(options: argparse.Namespace) -> Path | None:
    """The folder of nbgrader's course, with the secret and the gradebook; or None."""
    if options.course is not None:
        if not (options.course / "nbgrader_config.py").exists():
            raise UsageError(f"{options.course} is no course of nbgrader",
                             "it has no nbgrader_config.py",
                             f"autograder course {options.course}")
        return options.course
    around = options.submitted.resolve().parent
    return around if (around / "nbgrader_config.py").exists() else None


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _chapter(number: str | None, chapters: tuple[Chapter, ...]) -> Chapter | None:
    if number is None:
        return None
    wanted = number.lower().removeprefix("ch").zfill(2)
    for chapter in chapters:
        if chapter.stem[:2] == wanted:
            return chapter
    raise UsageError(f"there is no chapter {number!r}",
                     f"there are {', '.join(chapter.stem for chapter in chapters)}",
                     "--chapter 04")
