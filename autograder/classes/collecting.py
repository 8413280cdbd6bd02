"""Puts what a platform delivered where nbgrader looks for it, as notebooks that it can read.

A notebook that is as it should be is copied byte for byte. Another one is written as it should
have been handed in (see `restored`). What cannot be read is left out, and said.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbgrader.coursedir import CourseDirectory

from autograder.chapters.chapter import Chapter
from autograder.classes.gradebook import release_of
from autograder.classes.restored import restored
from autograder.classes.submitted import Submission, contents_of, notebooks_of
from autograder.classes.table import folder_of
from autograder.submissions.attempts import chapter_of


def collect(submissions: Sequence[Submission], chapters: Sequence[Chapter],
            course: CourseDirectory) -> Iterator[tuple[Submission, str]]:
    """Write a notebook for each submission; yields what was repaired, or why there is none.

    "" means that nothing was to be repaired. A notebook that is there is replaced.
    """
    for submission in submissions:
        notebooks = notebooks_of(submission)
        chapter = submission.chapter
        if not any(cell.kind == "code" for each in notebooks for cell in each.cells):
            yield submission, "left out: it cannot be read"
            continue
        if chapter is None or all(chapter_of(each, chapters) is not chapter
                                  for each in notebooks):
            yield submission, f"left out: nothing in it is of {submission.stem or 'the course'}"
            continue
        place = Path(course.format_path(course.submitted_directory,
                                        folder_of(submission.student), chapter.assignment))
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{chapter.stem}.ipynb"
        notes = [*submission.notes, *(note for each in notebooks for note in each.notes)]
        contents = contents_of(submission)
        if len(contents) == 1 and not notes and _is_nbgraders(contents[0][1]):
            path.write_bytes(contents[0][1])
        else:
            whole = restored(notebooks, chapter, chapters, release_of(chapter, course))
            path.write_text(nbformat.writes(whole), encoding="utf-8", newline="\n")
        if submission.submitted is not None:
            (place / "timestamp.txt").write_text(submission.submitted.isoformat(),
                                                 encoding="utf-8")
        yield submission, "; ".join(notes)


def _is_nbgraders(data: bytes) -> bool:
    """Whether nbgrader reads a file without a complaint."""
    try:
        notebook = nbformat.reads(data.decode("utf-8"), as_version=4)
        nbformat.validate(notebook)
    except Exception:                   # of nbformat, jsonschema or the decoder
        return False
    ids = [cell.metadata["nbgrader"].get("grade_id") for cell in notebook.cells
           if cell.metadata.get("nbgrader") is not None]
    return None not in ids and len(ids) == len(set(ids)) > 0
