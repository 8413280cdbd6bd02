"""What grading takes: of this machine's processors, and next to stock nbgrader.

Each submission is solved, and each answer is another text than everybody else's, so that
nothing which was judged before can be used again. Processor time is that of all processes which
a command has started. It is hardly another one on a busy machine; the wall clock is.
"""

import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograder.chapters import editions
from autograder.chapters.chapter import Chapter, read_chapter
from autograder.classes.course_folder import make_course
from gearworks.errors import GearworksError

STOCK = "c = get_config()\nc.CourseDirectory.course_id = 'stock'\n"


@dataclass(frozen=True)
class Taken:
    """Seconds that a command has taken: of the processors, and by the wall clock."""

    processor: float
    wall: float


def measure(paths: Sequence[Path], root: Path, count: int, jobs: Sequence[int],
            stock: bool) -> Iterator[str]:
    """Grade a class of `count` for each chapter; yields lines of a table.

    paths: the chapters' sources. jobs: how many workers, one run each. stock: whether nbgrader
    without our configuration grades the same submissions, too.
    """
    for path in paths:
        chapter = read_chapter(path)
        with tempfile.TemporaryDirectory() as folder:
            course = Path(folder, "course")
            hand_in(chapter, root, course / "submitted", count)
            one = Path(folder, "one", "submitted")
            hand_in(chapter, root, one, 1)
            first = grade(one, 1)
            ours = {number: grade(course / "submitted", number) for number in jobs}
            for number, taken in ours.items():
                yield (f"{chapter.assignment}  {count} submissions, {_workers(number)}: "
                       f"{taken.processor / count:.2f} s of processor time each, "
                       f"{taken.wall / count:.2f} s by the wall clock")
            if count > 1:
                more = (ours[jobs[0]].processor - first.processor) / (count - 1)
                yield (f"{chapter.assignment}  a class of one: {first.processor:.2f} s; each "
                       f"further submission: {more:.2f} s")
            if len(jobs) > 1:
                least, most = ours[jobs[0]], ours[jobs[-1]]
                share = least.wall * jobs[0] / (most.wall * jobs[-1])
                yield f"{chapter.assignment}  {share:.2f} of linear in workers"
            if stock:
                theirs = grade_with_stock_nbgrader(chapter, root, course)
                yield (f"{chapter.assignment}  stock nbgrader autograde, {count} submissions: "
                       f"{theirs.processor / count:.2f} s of processor time each, "
                       f"{theirs.wall / count:.2f} s by the wall clock; ours is "
                       f"{theirs.processor / ours[jobs[0]].processor:.1f} times as fast by "
                       f"processor time, {theirs.wall / ours[jobs[0]].wall:.1f} by the wall "
                       "clock")


def hand_in(chapter: Chapter, root: Path, folder: Path, count: int) -> None:
    """Write solved submissions, each with answers that are nobody else's."""
    learner = editions.learner_edition(chapter, root)
    solved = editions.solutions(chapter)
    for number in range(count):
        own = {name: signed(text, number) for name, text in solved.items()}
        _write(editions.solve(learner, own), folder / f"student-{number:04}"
               / chapter.assignment / f"{chapter.stem}.ipynb")


def signed(answer: str, number: int) -> str:
    """An answer with a comment within each of its functions, where it is a part of them.

    >>> print(signed("def double(x):\\n    return x + x\\n", 7))
    def double(x):
        # 7
        return x + x
    """
    lines = answer.splitlines()
    ends = [node.body[-1] for node in ast.walk(ast.parse(answer))
            if isinstance(node, ast.FunctionDef)]
    for last in sorted(ends, key=lambda last: -last.lineno):
        lines.insert(last.lineno - 1, f"{' ' * last.col_offset}# {number}")
    return "\n".join(lines)


def grade(submitted: Path, jobs: int) -> Taken:
    """`autograder grade` on a class."""
    with tempfile.TemporaryDirectory() as results:
        return _timed([sys.executable, "-m", "autograder", "grade", str(submitted.resolve()),
                       "--to", results, "--jobs", str(jobs)], Path(results))


def grade_with_stock_nbgrader(chapter: Chapter, root: Path, course: Path) -> Taken:
    """`nbgrader autograde`, which runs the notebooks, on what is in a course's `submitted`.

    Release and gradebook are made before.
    """
    make_course(course, root)
    _timed([sys.executable, "-m", "nbgrader", "generate_assignment", chapter.assignment],
           course)
    (course / "nbgrader_config.py").write_text(STOCK, encoding="utf-8")
    return _timed([sys.executable, "-m", "nbgrader", "autograde", chapter.assignment], course)


def _timed(command: Sequence[str], folder: Path) -> Taken:
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent),
                                                         os.environ.get("PATH", os.defpath)])}
    before, start = _used(), time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True,
                          encoding="utf-8", errors="replace")
    wall, used = time.monotonic() - start, _used() - before
    if done.returncode:
        raise GearworksError(f"{' '.join(command[1:4])} failed",
                             (done.stderr or done.stdout).strip()[-500:],
                             "run it by hand")
    return Taken(used, wall)


def _used() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _write(notebook: NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(editions.to_text(notebook), encoding="utf-8")


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"
