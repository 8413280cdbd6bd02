"""The course in nbgrader, from release to CSV:
every command as the instructors' guide gives it.

A small chapter is graded whole; of the real ones, the exercises without the demos: those of
chapter 3, and with --long those of each.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.classes import course_folder
from autograder.reference.cutting import BEGIN, END

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).parent / "data" / "98_small.md"
RUN = "pipeline-run_request"
COUNT, FLOPS = "accounting-parameter_count", "accounting-forward_flops"

CHAPTERS = chapter_paths(REPOSITORY / "book" / "chapters")
REAL = [pytest.param(path, id=path.stem, marks=pytest.mark.long) for path in CHAPTERS]

# A wrong answer that passes some of the checks.
STOP = '        if token in eos_ids:\n            finish_reason = "stop"\n            break\n'
APPEND = "        ids.append(token)\n"
EOS_IS_KEPT = (STOP + APPEND, APPEND + STOP)


def nbgrader(course, *arguments, check=True):
    """Run one command of nbgrader in a course's folder,
    in an environment that was not activated."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("PATH", "VIRTUAL_ENV")}
    result = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=course,
                            env=environment | {"PATH": os.defpath}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    assert not check or result.returncode == 0, result.stdout
    return result


@pytest.fixture(scope="module")
def course(tmp_path_factory, chapter):
    """A course that has released this repository's chapters and the small one."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("repository")
    (root / "book" / "chapters").mkdir(parents=True)
    shutil.copytree(SMALL.parent, root / "autograder" / "tests" / "data")
    shutil.copy(SMALL, root / "book" / "chapters")
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    patch.setattr(editions, "REQUIRED_POINTS", sum(points(chapter)[id] for id in (RUN, COUNT)))
    folder = tmp_path_factory.mktemp("my_course")
    course_folder.make_course(folder, root)
    patch.undo()
    course_folder.make_course(folder, REPOSITORY)
    nbgrader(folder, "generate_assignment", "ch*")
    return folder


def points(chapter):
    return {exercise.grade_id: editions.exercise_points(exercise)
            for exercise in chapter.exercises}


def submissions(chapter, learner):
    """The notebooks of a small class, by student."""
    solved = editions.solutions(chapter)
    everything = editions.solve(learner, solved)

    def with_cell(notebook, id, source):
        """A notebook with the source of one cell changed."""
        copy = nbformat.from_dict(notebook)
        cell = next(cell for cell in copy.cells if cell.id == id)
        cell.source = source(cell.source)
        return copy

    assert EOS_IS_KEPT[0] in solved[RUN]
    wrong = solved | {RUN: solved[RUN].replace(*EOS_IS_KEPT)}

    # Right code that logs, warns, writes to the terminal's stderr and sets IPython up so that
    # every expression shows.
    noisy = with_cell(everything, RUN,
                      lambda source: ("import os, sys, logging, warnings\n"
                                      "get_ipython().ast_node_interactivity = 'all'\n"
                                      + source.replace(
                                          "    prompt_ids = encode(prompt)\n",
                                          "    prompt_ids = encode(prompt)\n    os.write(2, "
                                          "b'low')\n    print('high', file=sys.stderr)\n    "
                                          "logging.error('log')\n    warnings.warn('warn')\n")))

    loud = with_cell(everything, RUN,
                     lambda source: source.replace(
                         "    prompt_ids = encode(prompt)\n",
                         "    prompt_ids = encode(prompt)\n    word = 'can'\n"
                         "    print(word + 'ary', prompt_ids)\n"))

    # Accidents of editors: a check cell pasted once more, a graded cell deleted, metadata left
    # empty.
    pasted = nbformat.from_dict(everything)
    at = next(index for index, cell in enumerate(pasted.cells) if cell.id == f"check-{COUNT}")
    twin = nbformat.from_dict(pasted.cells[at])
    twin.id = "twin"
    pasted.cells.insert(at, twin)
    pasted.cells.insert(0, new_code_cell("1", metadata={"nbgrader": {}}))
    deleted = nbformat.from_dict(everything)
    deleted.cells = [cell for cell in deleted.cells if cell.id != f"check-{RUN}"]

    # Scores that a learner writes down instead of earning them, each of which stock nbgrader
    # takes for full marks.
    forged = with_cell(learner, RUN,
                       lambda source: "import autograder\nautograder.check = lambda *_: 'all "
                                      "of them'")
    return {"solved": everything, "untouched": learner,
            "half": editions.solve(learner, {RUN: solved[RUN]}),
            "wrong": editions.solve(learner, wrong), "noisy": noisy, "pasted": pasted,
            "deleted": deleted, "forged": forged, "loud": loud,
            "bonus": editions.solve(learner, {COUNT: solved[COUNT], FLOPS: solved[FLOPS]})}


@pytest.fixture(scope="module")
def graded(course, chapter, learner):
    """The rows of grades.csv by student, after collecting, grading, feedback and export."""
    archive = course / "downloaded" / "ch98" / "archive"
    archive.mkdir(parents=True)
    for student, notebook in submissions(chapter, learner).items():
        (archive / f"{student}_98_small.ipynb").write_text(editions.to_text(notebook),
                                                           encoding="utf-8")
    nbgrader(course, "zip_collect", "ch98")
    nbgrader(course, "db", "student", "add", "absent")
    nbgrader(course, "autograde", "ch98")
    nbgrader(course, "generate_feedback", "ch98")
    nbgrader(course, "export", "--to", "grades.csv")
    return {row["student_id"]: row for row in rows_of(course / "grades.csv")
            if row["assignment"] == "ch98"}


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_release_is_the_learner_edition_byte_for_byte(course, chapter):
    for each in [chapter, *map(read_chapter, CHAPTERS)]:
        released = (course / "release" / each.assignment
                    / f"{each.stem}.ipynb").read_text(encoding="utf-8")
        assert released == editions.to_text(editions.learner_edition(each,
                                                                     REPOSITORY)), each.stem


@pytest.mark.parametrize("path", REAL)
def test_a_real_chapter_gives_full_points_solved_and_none_untouched(course, path):
    """Also, that every cell of an exercise brings what it needs:
    the demos and the setup are left out."""
    real = read_chapter(path)
    learner = editions.learner_edition(real, REPOSITORY)
    learner.cells = [cell for cell in learner.cells if "nbgrader" in cell.metadata]
    solved = editions.solve(learner, editions.solutions(real))
    for student, notebook in (("solver", solved), ("idler", learner)):
        submitted = course / "submitted" / student / real.assignment / f"{real.stem}.ipynb"
        submitted.parent.mkdir(parents=True)
        submitted.write_text(editions.to_text(notebook), encoding="utf-8")
    nbgrader(course, "autograde", real.assignment)
    nbgrader(course, "export", "--to", "real.csv", "--assignment", str([real.assignment]))
    total = {row["student_id"]: row["total"] for row in rows_of(course / "real.csv")}
    assert float(total["solver"]) == 100 and float(total["idler"]) == 0


def test_solved_is_full_and_untouched_is_nothing(graded, chapter):
    worth = points(chapter)
    full = graded["solved"]
    assert (float(full["required"]) == float(full["required_max"]) == float(full["total"])
            == worth[RUN] + worth[COUNT])
    assert float(full["bonus"]) == float(full["bonus_max"]) == worth[FLOPS]
    nothing = graded["untouched"]
    assert (nothing["status"] == "graded"
            and float(nothing["total"]) == float(nothing["bonus"]) == 0)


def test_half_solved_gives_the_right_half(graded, chapter):
    assert (float(graded["half"]["required"]) == float(graded["half"]["total"])
            == points(chapter)[RUN])


def test_wrong_answers_give_a_part(graded, chapter):
    worth = points(chapter)
    lost = worth[RUN] + worth[COUNT] - float(graded["wrong"]["required"])
    assert 0 < lost < worth[RUN]


def test_bonus_points_fill_up_to_the_maximum(graded, chapter):
    worth, row = points(chapter), graded["bonus"]
    assert float(row["required"]) == worth[COUNT] and float(row["bonus"]) == worth[FLOPS]
    assert float(row["total"]) == min(worth[COUNT] + worth[FLOPS], worth[COUNT] + worth[RUN])


def test_noise_and_accidents_cost_nothing(graded):
    for student in ("noisy", "pasted", "deleted"):
        assert graded[student]["total"] == graded["solved"]["total"], student
        assert graded[student]["bonus"] == graded["solved"]["bonus"], student


def test_a_score_that_a_notebook_shows_is_worth_nothing(graded):
    assert float(graded["forged"]["total"]) == 0


def test_hidden_inputs_and_their_seeds_stay_hidden(graded, course):
    """A print in the learner's function shows nothing to anybody."""
    page = (course / "feedback" / "loud" / "ch98" / "98_small.html").read_text(encoding="utf-8")
    assert graded["loud"]["total"] == graded["solved"]["total"]
    assert "canary" not in page and "Seed " not in page
    secret = (course / "autograder_secret.txt").read_text(encoding="utf-8").strip()
    assert secret not in page


def test_who_has_not_submitted_gets_no_zero(graded):
    assert graded["absent"]["status"] == "not submitted" and graded["absent"]["total"] == ""


def test_feedback_shows_the_report_and_no_solution(graded, course, chapter):
    feedback = (course / "feedback" / "wrong" / "ch98"
                / "98_small.html").read_text(encoding="utf-8")
    assert "Expected" in feedback and "Found" in feedback
    for student in ("untouched", "half"):
        page = (course / "feedback" / student / "ch98"
                / "98_small.html").read_text(encoding="utf-8")
        assert ("parameter_count" in page
                and "attention = 2 * D * queries" not in re.sub(r"<[^>]+>", "", page))


def test_nbgrader_validate_passes_on_the_solved_notebook_and_fails_on_the_untouched(
    chapter, learner, tmp_path):
    for name, notebook in (("solved", editions.solve(learner, editions.solutions(chapter))),
                           ("untouched", learner)):
        (tmp_path / f"{name}.ipynb").write_text(editions.to_text(notebook), encoding="utf-8")
    result = nbgrader(tmp_path, "validate", "solved.ipynb", "untouched.ipynb", check=False)
    said = result.stdout
    assert said.count("Success! Your notebook passes all the tests.") == 1
    assert "VALIDATION FAILED ON 3 CELL(S)!" in said


def test_a_regrade_gives_the_same_and_no_kernel_is_needed(graded, course, tmp_path):
    """The wrong answer's checks draw the same inputs; the kernel that is named is nowhere."""
    submitted = course / "submitted" / "wrong" / "ch98" / "98_small.ipynb"
    text = submitted.read_text(encoding="utf-8").replace('"name": "python3"', '"name": "gone"')
    submitted.write_text(text, encoding="utf-8")
    for _ in range(2):
        nbgrader(course, "autograde", "ch98", "--student", "wrong", "--force")
        nbgrader(course, "export", "--to", "again.csv")
        [row] = [row for row in rows_of(course / "again.csv")
                 if (row["assignment"], row["student_id"]) == ("ch98", "wrong")]
        assert row["total"] == graded["wrong"]["total"]


def test_a_graded_cell_that_is_no_check_of_the_course_stops_its_notebook(learner, monkeypatch):
    """Rather than giving full points to what shows nothing."""
    monkeypatch.setenv("AUTOGRADER_SECRET", "of the tests")
    from autograder.classes.nbgrader_preprocessors import JudgeChecks, JudgeError

    strange = nbformat.from_dict(learner)
    strange.cells.append(new_code_cell("assert True", metadata={"nbgrader": {
        "grade": True, "solution": False, "locked": True, "points": 3, "grade_id": "mine"}}))
    with pytest.raises(JudgeError, match="cannot be graded"):
        JudgeChecks().preprocess(strange, {"nbgrader": {"notebook": "98_small"}})


def test_a_mark_without_a_name_leaves_nothing_and_marks_must_pair_up():
    from autograder.classes.nbgrader_preprocessors import RestoreStubs

    restore = RestoreStubs()._replace_solution_region
    cell = new_code_cell(f"a = 1\n{BEGIN}\nb = 2\n{END}\nc = 3")
    assert restore(cell, "python") and cell.source == "a = 1\nc = 3"
    for broken in (f"{BEGIN} x.f\nb", f"b\n{END}", f"{BEGIN} x.f\n{BEGIN} x.g\n{END}"):
        with pytest.raises(RuntimeError):
            restore(new_code_cell(broken), "python")


def test_the_exhibit_of_a_museum_is_released_broken():
    from autograder.classes.nbgrader_preprocessors import RestoreStubs
    from autograder.reference.cutting import cut
    from autograder.reference.source import module_source
    from autograder.variants.mutation import exhibit_source

    pieces = cut(module_source("museum"), ["conversation_ids"],
                 exhibit=("tutorial-engine", exhibit_source("museum", "tutorial-engine")))
    cell = new_code_cell(pieces.marked)
    assert (RestoreStubs()._replace_solution_region(cell, "python")
            and cell.source == pieces.stub)


def test_methods_and_nested_modules_are_told_apart():
    from autograder.classes.nbgrader_preprocessors import RestoreStubs
    from autograder.reference.cutting import cut
    from autograder.reference.source import module_source

    pieces = cut(module_source("kv_cache"), ["KVCache"])
    cell = new_code_cell(pieces.marked)
    assert RestoreStubs()._replace_solution_region(cell, "python")
    assert cell.source == pieces.stub


def test_a_course_is_renewed_without_touching_the_instructors_settings(course, chapter,
                                                                       monkeypatch):
    config = course / "nbgrader_config.py"
    assert 'course_id = "my_course' in config.read_text(encoding="utf-8").replace("'", '"')
    root = course.parent / "repository0"
    config.write_text(config.read_text(encoding="utf-8") + "\nc.Execute.timeout = 7\n",
                      encoding="utf-8")
    monkeypatch.setattr(editions, "REQUIRED_POINTS",
                        sum(points(chapter)[id] for id in (RUN, COUNT)))
    course_folder.make_course(course, root)
    assert config.read_text(encoding="utf-8").endswith("c.Execute.timeout = 7\n")
