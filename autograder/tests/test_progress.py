"""How far a learner is: every stage, every way in which code can end,
as text and as JSON. About 40 s."""

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autograder import cli
from autograder.chapters import editions
from autograder.chapters.chapter import Cell, Chapter, Exercise
from autograder.checking import checks_of
from autograder.classes.pages import number, page
from autograder.judge import judging
from autograder.submissions import progress
from autograder.submissions.attempts import find_components
from autograder.submissions.intake import read_notebooks
from autograder.submissions.progress import Stage

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).parent / "data" / "98_small.md"
LOOP = "pipeline.run_request"
COUNT, FLOPS = "accounting.parameter_count", "accounting.forward_flops"


@pytest.fixture(scope="module")
def solved(chapter):
    return editions.solutions(chapter)


@pytest.fixture
def measure(tmp_path, chapter, learner):
    """measure({grade id: source}): the progress by exercise, as text and as JSON."""
    def run(sources):
        path = tmp_path / "98_small.ipynb"
        path.write_text(editions.to_text(editions.solve(learner, sources)), encoding="utf-8")
        notebooks = read_notebooks(path)
        found = progress.measure([chapter], find_components([chapter], notebooks))
        text, data = progress.text(found, notebooks), progress.as_json(found, notebooks)
        json.dumps(data)
        return {each.exercise: each for each in found[0].exercises}, text, data["chapters"][0]
    return run


def worth(exercise):
    return sum(check.points for check in checks_of(exercise))


def test_nothing_is_started(measure):
    found, text, data = measure({})
    assert {each.stage for each in found.values()} == {Stage.NOT_STARTED}
    assert data["points"] == data["bonus"] == 0 and data["total"] == worth(LOOP) + worth(COUNT)
    assert text.startswith(f"98 · A small chapter: 0 of {data['total']:g} points\n  not "
                           "started")


def test_everything_is_solved(measure, solved):
    found, text, data = measure(solved)
    assert ({each.stage for each in found.values()} == {Stage.PASSED}
            and all(not each.notes for each in found.values()))
    assert data["points"] == data["total"] and data["bonus"] == worth(FLOPS)
    assert "  passed  " in text and f"{FLOPS} (optional)" in text and "as a bonus" in text


CHAPTERS = [progress.ChapterProgress(stem, f"{stem} title", tuple(
    progress.ExerciseProgress(f"m.f{number}", optional, stage, points, 50.0, cell=number + 1,
                              notebook=f"{stem}.ipynb", found="<b>" if points else "")
    for number, (stage, points, optional) in enumerate(exercises))) for stem, exercises in (
        ("01", [(Stage.PASSED, 50.0, False), (Stage.NOT_STARTED, 0.0, True)]),
        ("02", [(Stage.NOT_STARTED, 0.0, False), (Stage.FAILING, 12.5, False)]),
        ("03", [(Stage.NOT_STARTED, 0.0, False)]))]


def test_totals_have_a_bar_and_what_comes_next_is_named():
    lines = progress.text(CHAPTERS).splitlines()
    assert lines[-5:] == ["####################    50 of 50  01 title",
                          "##..................  12.5 of 100  02 title",
                          "....................     0 of 50  03 title",
                          "######.............. 62.5 of 200 points in all",
                          "Next: m.f0, in 02.ipynb, cell 1"]


@pytest.mark.parametrize("chapters, name", [
    (CHAPTERS, ("02", "m.f0")), (CHAPTERS[:1], None), (CHAPTERS[2:], ("03", "m.f0")),
    ([CHAPTERS[0], CHAPTERS[2]], ("03", "m.f0")), ([], None)])
def test_the_next_step_is_in_the_chapter_that_is_furthest_on(chapters, name):
    step = progress.next_step(chapters)
    assert (step and (step.notebook.removesuffix(".ipynb"), step.exercise)) == name


def test_a_receipt_has_the_points_and_the_notebooks_hashes(tmp_path):
    path = tmp_path / "01_overview.ipynb"
    path.write_bytes(b"abc")
    made = datetime(2026, 3, 1, 12, tzinfo=UTC)
    told = json.loads(progress.receipt(CHAPTERS, [path], made))
    assert told["points"] == 62.5 and told["total"] == 200
    assert [chapter["points"] for chapter in told["chapters"]] == [50, 12.5, 0]
    assert told["notebooks"] == {path.name: hashlib.sha256(b"abc").hexdigest()}
    assert told["made"] == "2026-03-01T12:00:00+00:00" and "the instructor's" in told["counts"]


def test_the_page_holds_what_the_text_holds():
    text = page("progress", chapters=CHAPTERS, number=number,
                step=progress.next_step(CHAPTERS))
    assert "Next: <strong>m.f0</strong>" in text and "&lt;b&gt;" in text and "<b>" not in text
    for chapter in CHAPTERS:
        assert chapter.title in text
    assert "62.5%" not in text and "width: 12.5%" in text


def test_the_command_writes_a_page_and_a_receipt(tmp_path, chapter, learner, solved, capsys):
    root = tmp_path / "root"
    (root / "book" / "chapters").mkdir(parents=True)
    (root / "pyproject.toml").write_text("", encoding="utf-8")
    (root / "book" / "chapters" / SMALL.name).write_bytes(SMALL.read_bytes())
    notebook = tmp_path / "98_small.ipynb"
    notebook.write_text(editions.to_text(editions.solve(learner, solved)), encoding="utf-8")
    html, receipt = tmp_path / "me.html", tmp_path / "receipt.json"
    assert cli.main(["progress", str(notebook), "--root", str(root), "--html", str(html),
                     "--receipt", str(receipt)]) == 0
    assert "passed" in capsys.readouterr().out
    assert "Everything that is required is finished." in html.read_text(encoding="utf-8")
    told = json.loads(receipt.read_text(encoding="utf-8"))
    assert told["points"] == told["total"] == worth(LOOP) + worth(COUNT)


def test_a_wrong_answer_names_the_check_and_keeps_the_points_of_the_others(measure, solved):
    right = solved["pipeline-run_request"]
    wrong = right.replace("while len(ids) < max_tokens", "while len(ids) <= max_tokens")
    assert wrong != right
    found, text, data = measure({"pipeline-run_request": wrong})
    each = found[LOOP]
    titles = [check.title for check in checks_of(LOOP) if check.public]
    assert (each.stage is Stage.FAILING and each.failing in titles
            and each.found.startswith("Expected ") and each.hint)
    assert (0 < each.points < each.total and "  failing  " in text
            and each.failing.split()[0] in text)
    assert (each.notebook == "98_small.ipynb" and each.cell
            and data["exercises"][0]["stage"] == "failing")
    assert found[COUNT].stage is Stage.NOT_STARTED


@pytest.mark.parametrize(
    "body, words",
    [("import sys; sys.exit()", "SystemExit"), ("import os; os._exit(0)", "ended the Python"),
     ("raise KeyboardInterrupt", ""), ("return nowhere", "NameError"),
     ("return run_request(prompt)", "TypeError"),
     ("import no_such_module", "ModuleNotFoundError"),
     ("import os; os.close(1); os.close(0); return 1", ""),
     ("print('x' * 10**6); import sys; sys.stderr.write('y' * 10**6); "
      "sys.__stdout__.write('{}'); return 1", ""),
     ("import threading\n    threading.Thread(target=print).start()\n    return 1", ""),
     ("raise type('Odd', (BaseException,), {'__str__': lambda self: 1 / 0})()", ""),
     ("yield 1", ""), ("return object()", "")])
def test_whatever_the_code_does_costs_its_own_exercise(body, words, measure, solved):
    head = solved["pipeline-run_request"].split('"""')[0].rstrip() + "\n"
    found, text, _ = measure(solved | {"pipeline-run_request": f"{head}    {body}\n"})
    assert found[LOOP].stage is Stage.FAILING and found[LOOP].points == 0
    assert words in found[LOOP].found
    assert found[COUNT].stage is found[FLOPS].stage is Stage.PASSED


@pytest.mark.parametrize("source, words",
                         [("def run_request(:", "no Python"),
                          ("LIMIT = 1 / 0\ndef run_request(*a, limit=LIMIT, **b):\n    return "
                           "1", "ZeroDivisionError"),
                          ("import no_such_module as m\ndef run_request(*a, **b):\n    return "
                           "m", "does not run: ModuleNotFoundError")])
def test_a_cell_that_does_not_run(source, words, measure, solved):
    found, text, _ = measure(solved | {"pipeline-run_request": source})
    assert (found[LOOP].stage is Stage.FAILING
            and words in found[LOOP].found + " ".join(found[LOOP].notes))
    assert (found[COUNT].stage is Stage.PASSED
            and words in text.replace("\n", " ").replace("                 ", ""))


@pytest.mark.parametrize("body",
                         ["while True:\n        pass",
                          "while True:\n        try:\n            1\n        except "
                          "BaseException:\n            1",
                          "while True:\n        try:\n            while True:\n                "
                          "pass\n        except BaseException:\n            continue"],
                         ids=["endless", "quick to catch", "catches everything"])
def test_endless_loops_end(body, measure, solved, monkeypatch):
    monkeypatch.setattr(judging, "EXERCISE_SECONDS", 2)
    head = solved["pipeline-run_request"].split('"""')[0].rstrip() + "\n"
    found, _, _ = measure(solved | {"pipeline-run_request": f"{head}    {body}\n"})
    assert found[LOOP].stage is Stage.FAILING and "seconds of computing" in found[LOOP].found
    assert found[COUNT].stage is found[FLOPS].stage is Stage.PASSED


def test_half_of_an_exercise_of_two_names(tmp_path):
    """The missing half is not the reference's here: what is not written earns nothing."""
    two = Exercise("accounting", ("stored_bytes", "memory_bytes"), 10, 1, ("a", "b", "c"))
    chapter = Chapter(Path("97_two.md"), (Cell("code", "", 1, exercise=two),))
    [cut] = editions.cuts_of(chapter).values()
    half = (cut.solution.split("def memory_bytes")[0] + "def memory_bytes"
            + cut.stub.split("def memory_bytes")[1])
    path = tmp_path / "97_two.ipynb"
    cell = {"cell_type": "code", "id": two.grade_id, "source": half}
    path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    [found] = progress.measure([chapter],
                               find_components([chapter], read_notebooks(path)))[0].exercises
    assert found.stage is Stage.FAILING and 0 <= found.points < found.total
    assert "not written" in found.found or "memory_bytes" in found.found


def test_the_gears_are_judged_one_by_one(measure, solved):
    """A wrong gear does not spoil those that use it:
    each is checked with the reference for everything else."""
    own = solved["accounting-forward_flops"]
    head, docstring, body = own.split('"""', 2)
    uses = f'{head}"""{docstring}"""\n    parameter_count(shape){body}'
    wrong = (solved["accounting-parameter_count"].split('"""')[0]
             + "    raise ValueError('wrong')")
    found, _, _ = measure(
        solved | {"accounting-forward_flops": uses, "accounting-parameter_count": wrong})
    assert found[COUNT].stage is Stage.FAILING and found[FLOPS].stage is Stage.PASSED


def test_the_command_line(tmp_path, learner, solved):
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    (tmp_path / "book" / "chapters" / SMALL.name).write_bytes(SMALL.read_bytes())
    (tmp_path / "chapters").mkdir()
    text = editions.to_text(editions.solve(learner, solved))
    (tmp_path / "chapters" / "98_small.ipynb").write_text(text, encoding="utf-8")
    (tmp_path / "chapters" / "broken.ipynb").write_text("{", encoding="utf-8")

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "autograder", "progress", "--root",
                               str(tmp_path), *arguments], capture_output=True,
                              encoding="utf-8")

    done = run()
    assert (done.returncode == 0 and "passed" in done.stdout
            and "broken.ipynb: damaged or cut off" in done.stdout)
    data = json.loads(run("--json").stdout)
    assert (data["chapters"][0]["exercises"][0]["stage"] == "passed"
            and "broken.ipynb" in data["notes"])
    for path in (tmp_path / "chapters").iterdir():
        path.unlink()
    done = run()
    assert (done.returncode == 0 and "not started" in done.stdout
            and "there are no notebooks there" in done.stderr)


def test_an_option_that_is_none_is_refused():
    assert cli.main(["progress", "--no-such-option"]) == 2
