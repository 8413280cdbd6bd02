"""What JPlag and Dolos get of a class, and what is called alike."""

import csv
import io
import zipfile
from pathlib import Path

import pytest

from autograder import cli
from autograder.chapters import editions
from autograder.chapters.chapter import read_chapter
from autograder.classes.similarity import alike

REPOSITORY = Path(__file__).resolve().parents[2]
LONG = "def f(a, b):\n    c = a * 2\n" + "    c = c + a * b\n" * 9 + "    return c\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the command writes for three students of chapter 1: one wrote the reference's text,
    one something of their own, one nothing."""
    place = tmp_path_factory.mktemp("class")
    chapter = read_chapter(REPOSITORY / "book" / "chapters" / "01_overview.md")
    learner = editions.learner_edition(chapter, REPOSITORY)
    solved = editions.solutions(chapter)
    own = {"pipeline-run_request": "def run_request(*arguments, **options):\n    return 1\n"}
    (place / "submitted").mkdir()
    for student, answers in (("ada", solved), ("ben", own), ("cleo", {})):
        text = editions.to_text(editions.solve(learner, answers))
        (place / "submitted" / f"{student}_01_overview.ipynb").write_text(text, "utf-8")
    assert cli.main(["similarity", str(place / "submitted"), "--to", str(place / "out")]) == 0
    return place / "out" / "ch01"


def test_jplag_gets_a_folder_a_student_and_what_was_given_apart(folder):
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    assert "submissions/ben/pipeline-run_request.py" in names
    assert not any("cleo" in name for name in names)
    exercises = {name.rpartition("/")[2] for name in names if name.startswith("base/stubs/")}
    assert exercises == {name.rpartition("/")[2] for name in names
                         if name.startswith("public/reference/")}
    ada = [name for name in names if name.startswith("submissions/ada/")]
    assert len(ada) == len(exercises)
    name = "pipeline-run_request.py"
    assert "NotImplementedError" in (folder / "base" / "stubs" / name).read_text("utf-8")
    ben = (folder / "submissions" / "ben" / name).read_text("utf-8")
    assert ben.strip() == "def run_request(*arguments, **options):\n    return 1"


def test_dolos_gets_an_archive_with_its_table(folder):
    with zipfile.ZipFile(folder / "dolos.zip") as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("info.csv").decode())))
        assert {row["filename"] for row in rows} | {"info.csv"} == {*archive.namelist()}
        stubs = archive.read("stubs.py").decode()
    assert [(row["full_name"], row["label"], row["ignored"]) for row in rows] == [
        ("what was given", "", "true"), ("public reference", "reference", ""), ("ada", "", ""),
        ("ben", "", "")]
    assert "NotImplementedError" in stubs and "def run_request" in stubs


def test_hints_name_who_has_the_references_text(folder):
    with open(folder / "hints.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["student"] for row in rows} == {"ada"}
    assert "pipeline-run_request" in {row["exercise"] for row in rows}


@pytest.mark.parametrize("written, is_alike", [
    (LONG, True), (LONG.replace("c", "total").replace("f(", "g("), True),
    (LONG.replace("    c = a * 2", "    # twice\n\n    c = a * 2  # it is"), True),
    (LONG.replace("def f(a, b):", "def f(a: int, b: int) -> int:\n    'Words.'"), True),
    (LONG.replace("a * 2", "a * 3"), False), (LONG.replace("a * 2", "2 * a"), False),
    ("def f(a, b):\n    return a\n", False), ("def f(", False)])
def test_names_comments_and_layout_do_not_count(written, is_alike):
    assert alike({"x": written}, {"x": LONG}) == (["x"] if is_alike else [])


def test_short_answers_are_alike_by_themselves():
    short = "def f(a):\n    return a + 1\n"
    assert alike({"x": short}, {"x": short}) == []
