"""Finds who handed in what, in a folder or an archive as it came from where it was handed in.

Known are nbgrader's folders (STUDENT/ch04/…), those of its exchange and of ngshare, which are
the same, the file names of Canvas, Moodle and Gradescope, a folder or an archive for each
student, and files whose names begin with the student's. What is in the files is read later (see
`autograder.submissions.intake`).
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

import yaml
from dateutil import parser, tz

from autograder.chapters.chapter import Chapter
from autograder.classes.roster import Roster
from autograder.submissions.archives import is_archive, is_by_the_way
from autograder.submissions.attempts import chapter_of
from autograder.submissions.intake import SCRIPT, Notebook, is_notebook_name, notebooks_in
from gearworks.errors import GearworksError

# Canvas: name, whether late, user, attempt's number, file. A file handed in again ends in -1.
CANVAS = re.compile(r"(?P<student>[^_/]+?)_(?P<late>LATE_)?(?P<key>\d{2,})_(?P<attempt>\d{2,})_"
                    r"(?P<file>.+)")
MOODLE = re.compile(r"(?P<student>[^/]+?)_(?P<key>\d+)_assignsubmission_(?:file|onlinetext)_?"
                    r"(?P<file>.*)")
GRADESCOPE = re.compile(r"submission_(?P<key>\d+)")
PLAIN = re.compile(r"(?P<student>.+?)_(?P<file>\d\d_[A-Za-z].*)")
ASSIGNMENT = re.compile(r"ch(\d\d)", re.IGNORECASE)
METADATA = "submission_metadata.yml"
TIMESTAMP = "timestamp.txt"
NO_NOTEBOOK = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".md", ".csv", ".npz", ".npy",
               ".yml", ".yaml", ".toml", ".log")


@dataclass(frozen=True)
class File:
    """A file that was handed in.

    name: its own, without what a platform put before it. attempt: the platform's number, which
    grows with time.
    """

    path: PurePosixPath
    name: str
    read: Callable[[], bytes] = field(compare=False)
    attempt: int = 0


@dataclass(frozen=True)
class Submission:
    """What a student handed in for a chapter.

    chapter: None when nothing says of which chapter it is. submitted: when, in UTC, where the
    platform says so. is_late: what the platform says. notes: what was strange about how it lay.
    """

    student: str
    chapter: Chapter | None
    files: tuple[File, ...]
    submitted: datetime | None = None
    is_late: bool = False
    name: str = ""
    email: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        return self.chapter.stem if self.chapter is not None else ""

    @property
    def assignment(self) -> str:
        return self.chapter.assignment if self.chapter is not None else ""


def find_submissions(place: Path, chapters: Sequence[Chapter], *, roster: Roster = Roster(),
                     chapter: Chapter | None = None) -> list[Submission]:
    """The submissions in a folder or an archive, by student and chapter.

    chapter: of all of them; else each is of the chapter that its folder, its file's name or its
    content tells. Raises GearworksError for a place that is not there or holds nothing.
    """
    found: dict[tuple[str, str], Submission] = {}
    files = _unwrapped(list(_files(place)))
    told = _gradescope(files)
    times = {file.path.parent: _time(file.read()) for file in files
             if file.path.name == TIMESTAMP}
    for file in files:
        if file.path.name in (METADATA, TIMESTAMP):
            continue
        one = _submission(file, chapters, told, times, roster, chapter)
        key = one.student, one.stem
        before = found.get(key)
        if before is not None:
            one = replace(before, files=before.files + one.files,
                          is_late=before.is_late or one.is_late,
                          submitted=max(filter(None, (before.submitted, one.submitted)),
                                        default=None),
                          notes=tuple(dict.fromkeys(before.notes + one.notes)))
        found[key] = one
    if not found:
        raise GearworksError(f"there are no submissions in {place}", "it holds no files",
                             "name the folder or the zip file that your platform gave you")
    return [found[key] for key in sorted(found)]


def contents_of(submission: Submission) -> list[tuple[str, bytes]]:
    """Name and content of each of a submission's files, the last attempt first."""
    files = sorted(submission.files, key=lambda file: -file.attempt)
    return [(file.name, file.read()) for file in files]


def notebooks_of(submission: Submission) -> list[Notebook]:
    """What of a submission's files is to be graded.

    Notebooks come before scripts, and both before what is called otherwise.
    """
    contents = contents_of(submission)
    chosen = ([each for each in contents if is_notebook_name(each[0]) or is_archive(each[1])]
              or [each for each in contents if each[0].endswith(SCRIPT)]
              or [each for each in contents if not each[0].lower().endswith(NO_NOTEBOOK)]
              or contents)
    notebooks = [notebook for name, data in chosen for notebook in notebooks_in(name, data)]
    if submission.chapter is None:
        return notebooks
    stem = submission.stem
    return [notebook if notebook.name in (f"{stem}.ipynb", f"{stem}{SCRIPT}")
            else replace(notebook, notes=(f"not called {stem}.ipynb", *notebook.notes))
            for notebook in notebooks]


def _files(place: Path) -> Iterator[File]:
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            below = PurePosixPath(path.relative_to(place).as_posix())
            if path.is_file() and not is_by_the_way(str(below)):
                yield File(below, below.name, path.read_bytes)
    elif place.is_file() and zipfile.is_zipfile(place):
        archive = zipfile.ZipFile(place)        # open as long as a file may be read: its list
        paths = sorted(entry.filename for entry in archive.infolist()       # is read once
                       if not entry.is_dir() and not is_by_the_way(entry.filename))
        for path in paths:
            yield File(PurePosixPath(path), PurePosixPath(path).name,
                       partial(archive.read, path))
    else:
        raise GearworksError(f"there are no submissions at {place}",
                             "it is neither a folder nor a zip file",
                             "name the folder or the zip file that your platform gave you")


def _unwrapped(files: list[File]) -> list[File]:
    """The files without the one folder that a platform put around all that it delivers."""
    tops = {file.path.parts[0] for file in files}
    seconds = {file.path.parts[1] for file in files if len(file.path.parts) > 1}
    known = any(pattern.fullmatch(name) for name in seconds
                for pattern in (CANVAS, MOODLE, GRADESCOPE, PLAIN))
    if len(tops) != 1 or not known or METADATA in tops:
        return files
    return [replace(file, path=PurePosixPath(*file.path.parts[1:])) for file in files
            if len(file.path.parts) > 1]


def _submission(file: File, chapters: Sequence[Chapter], told: dict[str, dict],
                times: dict[PurePosixPath, datetime | None], roster: Roster,
                chapter: Chapter | None) -> Submission:
    """The submission that a file is all of, or a part."""
    top, *below = file.path.parts
    matched = (MOODLE.fullmatch(top) or CANVAS.fullmatch(top) if below or "_" in top
               else None)
    student, key, is_late, notes = top, "", False, ()
    if matched is not None:
        student, key = matched["student"], matched["key"]
        is_late = bool(matched.groupdict().get("late"))
        if not below:
            name = matched["file"]
            if matched.re is CANVAS:                         # it marks what is handed in again
                name = re.sub(r"-\d+(?=\.[^.]+$)", "", name)
                file = replace(file, attempt=int(matched["attempt"]))
            file = replace(file, name=name)
    elif not below:
        plain = PLAIN.fullmatch(top)
        if plain:
            student, file = plain["student"], replace(file, name=plain["file"])
        else:
            student = top.partition(".")[0]
            notes = (f"whose is it? No student is named in {top}",)
    elif top in told:
        key, student = told[top]["key"], told[top]["student"]
    own = roster.find(key, student)
    folder = ASSIGNMENT.fullmatch(below[0]) if len(below) > 1 else None
    if chapter is None:
        if folder:
            chapter = next((each for each in chapters if each.stem[:2] == folder[1]), None)
        else:
            chapter = _by_name(file.name, chapters) or _by_content(file, chapters)
    more = told.get(top, {})
    if roster.students and own is None:
        notes = (*notes, f"{student} is not in the class's table")
    return Submission(own.id if own else student, chapter, (file,),
                      times.get(file.path.parent) or more.get("submitted"), is_late,
                      own.name if own else more.get("name", ""),
                      own.email if own else more.get("email", ""), notes)


def _by_name(name: str, chapters: Sequence[Chapter]) -> Chapter | None:
    return next((chapter for chapter in chapters if chapter.stem in name.lower()), None)


def _by_content(file: File, chapters: Sequence[Chapter]) -> Chapter | None:
    notebooks = notebooks_in(file.name, file.read())
    return next(filter(None, (chapter_of(each, chapters) for each in notebooks)), None)


def _gradescope(files: Sequence[File]) -> dict[str, dict]:
    """What Gradescope's list says of each folder: the student, and when it was handed in."""
    told = {}
    for file in files:
        if file.path.name != METADATA:
            continue
        try:
            listed = yaml.safe_load(file.read())
        except yaml.YAMLError as error:
            raise GearworksError(f"cannot read {file.path}", str(error),
                                 "download the submissions from Gradescope again") from None
        for folder, entry in (listed or {}).items():
            who = (entry.get(":submitters") or [{}])[0]
            id = str(who.get(":sid") or who.get(":email") or who.get(":name") or folder)
            told[folder] = {"student": id, "key": str(who.get(":email") or ""),
                            "name": who.get(":name") or "", "email": who.get(":email") or "",
                            "submitted": _time(str(entry.get(":created_at") or "").encode())}
    return told


def _time(text: bytes) -> datetime | None:
    """A time as nbgrader writes it into timestamp.txt, in UTC; None when it is none."""
    day, _, rest = text.decode(errors="replace").strip().partition(" ")
    clock, _, zone = rest.partition(" ")
    try:
        found = parser.parse(f"{day} {clock}")
    except (ValueError, OverflowError):
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=tz.gettz(zone) or UTC)
    return found.astimezone(UTC)
