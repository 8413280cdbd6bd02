"""The line at the top of a notebook: what it counts, what it remembers, who renews it."""

import json
import os
from pathlib import Path

import pytest
from nbclient import NotebookClient

from autograder.board import Board, notebook_path, saved_points
from autograder.chapters import editions
from autograder.chapters.outline import outline

CHAPTER = outline()[0]
LOOP, COUNT = "pipeline.run_request", "accounting.parameter_count"


class FakeReport:
    """A report with a score, whatever its checks say."""

    def __init__(self, exercise, score):
        self.exercise, self.score = exercise, score


def test_it_counts_what_is_required_and_names_what_comes_next():
    board = Board(CHAPTER)
    assert str(board) == (f"This chapter: 0 of 100 points, 0 of {len(board.exercises)} "
                          f"exercises finished. Next: {LOOP}")
    assert board.note(FakeReport(LOOP, board.totals[LOOP]))
    assert not board.note(FakeReport("tokenizer.train_bpe", 3.0))
    assert f"{board.totals[LOOP]:g} of 100 points, 1 of" in str(board)
    assert str(board).endswith(f"Next: {COUNT}")
    for name, total in board.totals.items():
        board.note(FakeReport(name, total))
    assert str(board).startswith("This chapter: 100 of 100") and "All that is" in str(board)


def test_optional_exercises_are_a_bonus():
    chapter = next(each for each in outline() if any(e.optional for e in each.exercises))
    optional = next(each for each in chapter.exercises if each.optional)
    board = Board(chapter)
    board.note(FakeReport(optional.name, 2.5))
    assert "0 of 100 points" in str(board) and "2.5 points as a bonus" in str(board)
    shown = board._repr_mimebundle_()["text/html"]
    assert f"<code>{optional.name}</code> (+): 2.5 of" in shown


@pytest.mark.parametrize("by", ["id", "metadata", "nbgrader"])
def test_points_are_read_from_the_outputs_of_the_file(tmp_path, by):
    """By whichever id an editor has kept; a cell without a number says nothing."""
    exercise = CHAPTER.exercises[0]
    names = {"id": {"id": exercise.check_id},
             "metadata": {"metadata": {"id": exercise.check_id}},
             "nbgrader": {"metadata": {"nbgrader": {"grade_id": exercise.check_id}}}}[by]
    said = [{"output_type": "display_data", "data": {"text/plain": ["1.0"]}},
            {"output_type": "execute_result", "data": {"text/plain": ["6.5"]}}]
    other = {"id": CHAPTER.exercises[1].check_id, "outputs": []}
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": [names | {"outputs": said}, other]}), encoding="utf-8")
    assert saved_points(path, CHAPTER) == {exercise.name: 6.5}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": [3]}', '{"cells": [{"outputs": '
                                  '[{"output_type": "execute_result", "data": {}}], "id": 7}]}',
                                  '{"cells": null}'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path, text):
    path = tmp_path / "x.ipynb"
    path.write_text(text, encoding="utf-8")
    assert saved_points(path, CHAPTER) == {} and saved_points(tmp_path / "no", CHAPTER) == {}
    assert saved_points(None, CHAPTER) == {}


def test_points_that_cannot_be_are_dropped():
    board = Board(CHAPTER, {LOOP: 1000.0, COUNT: -1.0, "x.y": 2.0})
    assert board.points == {}


def test_the_notebook_s_place_is_asked_of_those_who_know_it(tmp_path, monkeypatch):
    path = tmp_path / "01_overview.ipynb"
    path.write_text("{}", encoding="utf-8")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert notebook_path("01_overview", {}) is None
    assert notebook_path("01_overview", {"__vsc_ipynb_file__": str(path)}) == path
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    assert notebook_path("01_overview", {}) == path
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME")
    assert notebook_path("01_overview", {}).name == path.name


def test_a_check_renews_the_line_and_the_next_session_remembers(tmp_path, chapter, learner):
    """In a real kernel; the small chapter's exercises are chapter 1's."""
    solved = editions.solutions(chapter)
    notebook = editions.solve(learner, {"pipeline-run_request": solved["pipeline-run_request"]})
    notebook.cells = [cell for cell in notebook.cells
                      if cell.id in ("progress", "pipeline-run_request",
                                     "check-pipeline-run_request")]
    [line] = [cell for cell in notebook.cells if cell.id == "progress"]
    assert line.source.splitlines()[-1] == 'autograder.progress("98_small")'
    line.source = line.source.replace("98_small", "01_overview")
    path = tmp_path / "01_overview.ipynb"
    total = Board(CHAPTER).totals[LOOP]

    def run():
        NotebookClient(notebook, kernel_name="python3", timeout=120,
                       resources={"metadata": {"path": str(tmp_path)}}).execute(
            env=os.environ | {"JPY_SESSION_NAME": str(path)})
        path.write_text(editions.to_text(notebook), encoding="utf-8")
        [output] = line.outputs
        return output.data["text/plain"]

    assert f"{total:g} of 100 points, 1 of" in run()
    notebook.cells = [line]                     # and the file still holds what was found
    assert f"{total:g} of 100 points, 1 of" in run()
    assert "0 of 100 points, 0 of" in run()     # now it holds no check cell any more


def test_learners_have_it_and_the_book_has_not(chapter, learner):
    ids = [cell.id for cell in learner.cells]
    code = [cell.id for cell in learner.cells if cell.cell_type == "code"]
    assert ids.count("progress") == 1 and code.index("progress") == 2    # install, setup
    count = sum(cell.kind == "code" for cell in chapter.cells) + len(chapter.exercises)
    page = editions.book_edition(chapter, Path(__file__).parents[2], [[]] * count)
    assert "progress" not in [cell.id for cell in page.cells]
