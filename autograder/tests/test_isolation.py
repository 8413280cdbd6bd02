"""One exercise at a time: whatever else stands in a notebook, an exercise has the same points,
in the notebook, in `progress` and under nbgrader."""

import itertools
import random
from pathlib import Path

import nbformat
import numpy as np
import pytest

from autograder.chapters import editions
from autograder.chapters import chapter as chapters
from autograder.chapters.chapter import Chapter, Exercise, chapter_paths, read_chapter
from autograder.chapters.outline import outline
from autograder.checking.running import run_exercise
from autograder.classes.nbgrader_preprocessors import JudgeChecks
from autograder.judge.attempt import load
from autograder.judge.judging import judge
from autograder.judge.workers import Workers
from autograder.submissions.answers import answer_to
from autograder.submissions.attempts import find_components
from autograder.submissions.cells import Cell
from autograder.submissions.history import notebook_so_far
from autograder.submissions.intake import Notebook, notebook_of
from gearworks.layers import softmax

REPOSITORY = Path(__file__).resolve().parents[2]
STEMS = [path.stem for path in chapter_paths(REPOSITORY / "book" / "chapters")]


class Pages:
    """A chapter's code cells, of which each exercise's may be open or solved."""

    def __init__(self, stem):
        path = REPOSITORY / "book" / "chapters" / f"{stem}.md"
        chapter = read_chapter(path)
        self.learner = editions.learner_edition(chapter, REPOSITORY)
        self.solved = editions.solutions(chapter)
        [self.chapter] = [each for each in outline() if each.stem == stem]
        solved = editions.solve(self.learner, self.solved)
        self._cells = [tuple(self._cell(number, cell) for cell in pair) for number, pair in
                       enumerate(zip(self.learner.cells, solved.cells), start=1)
                       if pair[0].cell_type == "code"]

    def _cell(self, number, cell):
        grading = cell.metadata.get("nbgrader", {})
        return Cell(number, "code", cell.source,
                    tuple({grading.get("grade_id", cell.id): 1, cell.id: 1}))

    def notebook(self, solved):
        """The notebook in which these grade ids are solved."""
        return Notebook(f"{self.chapter.stem}.ipynb", tuple(
            pair[bool(solved & {*pair[0].ids})] for pair in self._cells))

    def answers(self, notebook):
        components = find_components([self.chapter], [notebook])
        return {exercise.grade_id: answer_to(exercise, components)
                for exercise in self.chapter.exercises}


@pytest.fixture(scope="module", params=STEMS)
def pages(request):
    return Pages(request.param)


def patterns(ids):
    """All sets of open exercises where they are few, else some."""
    if len(ids) <= 8:
        return [{*chosen} for size in range(len(ids) + 1)
                for chosen in itertools.combinations(ids, size)]
    draw = random.Random(len(ids))
    return [{id for id in ids if draw.random() < share}
            for share in (0.1, 0.5, 0.9) for _ in range(4)]


def code_of(answer):
    return answer.attempt and (answer.attempt.code, answer.attempt.missing)


def test_what_is_checked_of_an_exercise_does_not_depend_on_the_others(pages):
    """Nor on whether it comes from a file or from a kernel that has run the cells."""
    ids = [exercise.grade_id for exercise in pages.chapter.exercises]
    whole = pages.answers(pages.notebook({*ids}))
    assert all(answer.attempt is not None and not answer.attempt.missing and not answer.notes
               for answer in whole.values())
    for solved in patterns(ids):
        notebook = pages.notebook(solved)
        run = notebook_so_far(["", *(cell.source for cell in notebook.cells)], pages.chapter)
        for answers in (pages.answers(notebook), pages.answers(run)):
            for id, answer in answers.items():
                assert code_of(answer) == (code_of(whole[id]) if id in solved else None), id
                assert answer.is_started == (id in solved)


# What of a learner's other functions a definition may hold, each a wrong `softmax`.
SPOILT = "def softmax(x, out=None):\n    return x * 0 + 7\n"
HOLDS = {
    "by its name": "def attend(q, k):\n    return softmax(q @ k.T) @ k",
    "an alias": "shares = softmax\ndef attend(q, k):\n    return shares(q @ k.T) @ k",
    "an alias in another cell": [
        "shares = softmax", "def attend(q, k):\n    return shares(q @ k.T) @ k"],
    "a default argument": "def attend(q, k, by=softmax):\n    return by(q @ k.T) @ k",
    "a partial": "from functools import partial\nshares = partial(softmax, out=None)\n"
                 "def attend(q, k):\n    return shares(q @ k.T) @ k",
    "a wrapper": "def wrap(f):\n    def call(x):\n        return f(x)\n    return call\n"
                 "shares = wrap(softmax)\ndef attend(q, k):\n    return shares(q @ k.T) @ k",
    "a dictionary": "TABLE = {'softmax': softmax}\ndef attend(q, k):\n"
                    "    return TABLE['softmax'](q @ k.T) @ k",
    "a method": "class Shares:\n    of = staticmethod(softmax)\ndef attend(q, k):\n"
                "    return Shares.of(q @ k.T) @ k",
    "a class attribute by inheritance":
        "class Base:\n    def of(self, x):\n        return softmax(x)\nclass Shares(Base):\n"
        "    pass\ndef attend(q, k):\n    return Shares().of(q @ k.T) @ k",
    "a decorator": "import functools\ndef with_shares(f):\n    @functools.wraps(f)\n"
                   "    def call(q, k):\n        return f(q, k, softmax)\n    return call\n"
                   "@with_shares\ndef attend(q, k, shares):\n    return shares(q @ k.T) @ k",
}


@pytest.mark.parametrize("how", HOLDS)
def test_whatever_holds_the_learners_other_function_has_the_references(how):
    def exercise(module, *names):
        return chapters.Cell("code", "", 1, exercise=Exercise(module, names, 10, 1, ()))

    chapter = Chapter(Path("97_gears.md"), (exercise("layers", "softmax"),
                                            exercise("attention", "attention")))
    cells = HOLDS[how] if isinstance(HOLDS[how], list) else [HOLDS[how]]
    sources = ["import numpy as np", SPOILT,
               *(cell.replace("attend", "attention") for cell in cells)]
    notebook = notebook_so_far(["", *sources], chapter)
    answer = answer_to(chapter.exercises[1], find_components([chapter], [notebook]))
    assert answer.lent == ("softmax",)
    q, k = np.float32([[1, 2], [3, 1]]), np.float32([[0, 1], [2, 2], [1, 0]])
    assert np.allclose(load(answer.attempt)[0](q, k), softmax(q @ k.T) @ k)


def test_the_same_points_by_every_route(monkeypatch):
    """Every second exercise of chapter 1 is open, and one of the others is wrong."""
    monkeypatch.setenv("AUTOGRADER_SECRET", "of the tests")
    pages = Pages(STEMS[0])
    ids = [exercise.grade_id for exercise in pages.chapter.exercises]
    written = {id: pages.solved[id] for id in ids[1::2]}
    assert "accounting-bytes_moved-and-roofline_tokens_per_second" in ids
    for solved in (written, {id: pages.solved[id] for id in ids[::2]}):
        first = next(iter(solved))
        solved = dict(solved)
        solved[first] = solved[first].replace("return ", "return 2 * ", 1)
        notebook = editions.solve(pages.learner, solved)
        graded, _ = JudgeChecks().preprocess(nbformat.from_dict(notebook),
                                             {"nbgrader": {"notebook": pages.chapter.stem}})
        by_nbgrader = {
            cell.metadata.nbgrader.grade_id: float(cell.outputs[1].data["text/plain"])
            for cell in graded.cells if cell.metadata.get("nbgrader", {}).get("grade")}
        text = notebook_of("it.ipynb", nbformat.writes(notebook, version=4))
        run = notebook_so_far(["", *(cell.source for cell in notebook.cells
                                     if cell.cell_type == "code")], pages.chapter)
        by_file, by_run = pages.answers(text), pages.answers(run)
        with Workers() as workers:
            for exercise in pages.chapter.exercises:
                id = exercise.grade_id
                points = by_nbgrader[exercise.check_id]
                if id not in solved:
                    assert points == 0 and not by_run[id].is_started
                    continue
                whole = judge(by_file[id].attempt, workers, seed=3)
                here = run_exercise(exercise.name, load(by_run[id].attempt), public=None,
                                    seed=3)
                assert [each.status for each in here.outcomes] == [
                    each.status for each in whole.outcomes]
                assert (points == whole.total) == (id != first), (id, points)
                assert (whole.score == whole.total) == (id != first)
