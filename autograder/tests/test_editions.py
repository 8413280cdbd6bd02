"""The editions of a source: right, the same every time,
refused with file and line when it is wrong. 20 s."""

import ast
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import nbformat
import pytest

from autograder import check, cli
from autograder.chapters import editions
from autograder.chapters.chapter import ChapterError, read_chapter
from autograder.chapters.pictures import with_pictures
from autograder.checking import checks_of
from autograder.reference.cutting import BEGIN
from gearworks import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).parent / "data" / "98_small.md"
IDS = ["pipeline-run_request", "accounting-parameter_count", "accounting-forward_flops"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository that holds the small chapter and nothing else."""
    shutil.copytree(SMALL.parent, tmp_path / "autograder" / "tests" / "data")
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    shutil.copy(SMALL, tmp_path / "book" / "chapters")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    points = sum(editions.exercise_points(each) for each in read_chapter(SMALL).exercises
                 if not each.optional)
    monkeypatch.setattr(editions, "REQUIRED_POINTS", points)
    return tmp_path


def changed(tmp_path, *replacements):
    """The small chapter with a text in it replaced, as a file."""
    text = SMALL.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / SMALL.name
    path.write_text(text, encoding="utf-8")
    return path


PART = """
```{{code-cell}} python
---
tags: [exercise]
methods: [{methods}]
minutes: 20
level: 2
hints: [one, two, three]
{more}
---
from gearworks.kv_cache import {name}
```
"""
FIRST, SECOND = "kv_cache-BlockPool-allocate-and-free", (
    "kv_cache-BlockPool-share-and-keep-and-find-and-evict")


def with_parts(tmp_path, first="allocate, free", second="share, keep, find, evict",
               name="BlockPool", more="given: [__init__]"):
    """The small chapter, with two exercises more, on one class."""
    text = SMALL.read_text(encoding="utf-8")
    text += PART.format(methods=first, more=more, name="BlockPool")
    text += "\n```{code-cell} python\nBlockPool(3, 2).allocate()\n```\n"
    text += PART.format(methods=second, more="", name=name)
    path = tmp_path / SMALL.name
    path.write_text(text, encoding="utf-8")
    return read_chapter(path)


# --- the learner edition ----------------------------------------------------------------------


def test_an_exercise_is_a_strip_a_stub_and_a_locked_check(chapter, learner):
    nbformat.validate(learner)
    cells = {cell.id: cell for cell in learner.cells}
    for exercise in chapter.exercises:
        at = learner.cells.index(cells[f"about-{exercise.grade_id}"])
        strip, solution, check = learner.cells[at:at + 3]
        points = editions.exercise_points(exercise)
        assert (f"{points} points" in strip.source
                and f"{exercise.minutes} minutes" in strip.source)
        assert (strip.source.count("<details>") == 3
                and all(hint in strip.source for hint in exercise.hints))
        assert ("optional (+)" in strip.source) == exercise.optional
        address = urlparse(re.search(r"\[report a problem\]\((\S+)\)", strip.source)[1])
        asked = {name: value for name, [value] in parse_qs(address.query).items()}
        assert address.path.endswith("/issues/new") and asked["title"] == f"{exercise.name}: "
        assert {"98_small,", f"{exercise.name},", __version__ + "."} <= {*asked["body"].split()}
        assert (solution.id == exercise.grade_id
                and "raise NotImplementedError(" in solution.source)
        assert solution.metadata.nbgrader.solution and "editable" not in solution.metadata
        assert check.source == ("from autograder import check\n"
                                f'check("{exercise.name}", {exercise.names[0]})')
        assert check.metadata.nbgrader.points == points and check.metadata.editable is False
    assert ([cell.id for cell in learner.cells
             if cell.metadata.get("nbgrader", {}).get("solution")] == IDS)


def test_a_learner_notebook_has_no_outputs_no_solutions_and_little_metadata(chapter, learner):
    assert learner.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in learner.cells
               if cell.cell_type == "code")
    text = editions.to_text(learner)
    for line in editions.solution_lines(chapter):
        assert json.dumps(line, ensure_ascii=False)[1:-1] not in text
    assert BEGIN not in text and "HIDDEN" not in text
    allowed = {"tags", "nbgrader", "deletable", "editable", "jupyter"}
    assert {key for cell in learner.cells for key in cell.metadata} <= allowed
    folded = next(cell for cell in learner.cells
                  if "hide-input" in cell.metadata.get("tags", []))
    assert folded.metadata.jupyter.source_hidden


def test_a_notebook_asks_for_a_gpu_where_its_chapter_does(tmp_path, learner):
    """Colab reads it from the notebook's metadata."""
    chapter = read_chapter(changed(tmp_path, ("  name: python3\n", "  name: python3\n"
                                              "accelerator: GPU\n")))
    for edition in (editions.learner_edition(chapter, REPOSITORY),
                    editions.source_edition(chapter, REPOSITORY)):
        nbformat.validate(edition)
        assert edition.metadata.accelerator == "GPU"
    assert "accelerator" not in learner.metadata
    with pytest.raises(ChapterError, match="there is no accelerator 'TPU'") as caught:
        read_chapter(changed(tmp_path, ("  name: python3\n", "  name: python3\n"
                                        "accelerator: TPU\n")))
    assert "98_small.md" in caught.value.what


def test_pictures_are_inside(learner):
    text = next(cell.source for cell in learner.cells if "<img" in cell.source)
    assert 'alt="A gear, &quot;drawn&quot;"' in text and "../" not in text
    assert re.search(r'src="data:image/svg\+xml;base64,[\w+/=]{100,}"', text)


DIAGRAM = ('Before.\n\n<div class="flow" tabindex="0" role="group" aria-label="A box">\n'
           '<svg role="img" aria-label="A box, &quot;drawn&quot;" viewBox="0 0 40 20" '
           'width="80"><text x="1" y="9">&lt; one</text></svg>\n</div>\n\nAfter.\n')


def test_a_diagram_is_a_picture_in_a_notebook():
    """JupyterLab drops the elements of SVG from a text, and leaves the words in them."""
    text = with_pictures("here", DIAGRAM, REPOSITORY)
    assert re.fullmatch(r'Before\.\n\n<img alt="A box, &quot;drawn&quot;" src="data:image/svg'
                        r'\+xml;base64,[\w+/=]+">\n\nAfter\.\n', text)
    svg = base64.b64decode(re.search("base64,([^\"]+)", text)[1]).decode()
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == "-10 -10 60 40" and root.get("width") == "120"
    assert "&lt; one" in svg
    assert {*re.findall("color: (#[0-9a-f]+); background: (#[0-9a-f]+)", svg)} == {
        ("#1f2328", "#fff"), ("#e6e6e6", "#1c1e21")}


@pytest.mark.parametrize("wrong", [' aria-label="A box, &quot;drawn&quot;"',
                                   ' viewBox="0 0 40 20"', "</text>"])
def test_a_diagram_that_not_all_can_read_is_refused(wrong):
    with pytest.raises(ChapterError, match="cannot put this diagram"):
        with_pictures("here", DIAGRAM.replace(wrong, ""), REPOSITORY)


def test_no_notebook_has_elements_that_its_editor_drops():
    for path in sorted((REPOSITORY / "chapters").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                prose = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)
                assert not re.search("<(svg|style|script|iframe|canvas|button)", prose), path


def test_a_plot_is_followed_by_its_description_except_on_the_page(tmp_path):
    plot = ("```{code-cell} python\n---\nmystnb:\n  image:\n    alt: A line that rises.\n---\n"
            "plt.show()\n```\n")
    text = SMALL.read_text(encoding="utf-8") + "\n" + plot
    path = tmp_path / SMALL.name
    path.write_text(text, encoding="utf-8")
    chapter = read_chapter(path)
    for edition in (editions.learner_edition(chapter, REPOSITORY),
                    editions.source_edition(chapter, REPOSITORY)):
        assert (edition.cells[-2].source == "plt.show()"
                and edition.cells[-1].cell_type == "markdown")
        assert (edition.cells[-1].source.startswith("<details>")
                and "\n\nA line that rises.\n\n" in edition.cells[-1].source)
    assert editions._notebook(chapter, REPOSITORY, "import").cells[-1].source == "plt.show()"


def test_the_first_code_cell_installs_only_where_the_course_is_missing(learner):
    from IPython.core.interactiveshell import InteractiveShell

    first = next(cell for cell in learner.cells if cell.cell_type == "code")
    assert f"git+{editions.homepage(REPOSITORY)}\"" in first.source
    ran = []
    shell = InteractiveShell()
    shell.register_magic_function(ran.append, magic_name="pip")
    assert shell.run_cell(first.source).success and ran == []
    missing = first.source.replace("from importlib.util import find_spec",
                                   "find_spec = {'torch': 1}.get")
    assert shell.run_cell(missing).success
    assert ran == ['install --quiet "gearworks[truth,course] @ '
                   f'git+{editions.homepage(REPOSITORY)}"']


def test_ids_are_the_same_every_time_and_an_inserted_cell_moves_none(tmp_path, chapter,
                                                                     learner):
    again = editions.learner_edition(read_chapter(SMALL), REPOSITORY)
    assert editions.to_text(again) == editions.to_text(learner)
    ids = [cell.id for cell in learner.cells]
    assert len({*ids}) == len(ids)   # though two texts and two cells are repeated word for word
    longer = changed(tmp_path, ("A formula,", "Something new.\n\n+++\n\nA formula,"))
    new_ids = [cell.id
               for cell in editions.learner_edition(read_chapter(longer), REPOSITORY).cells]
    assert len(new_ids) == len(ids) + 1 and [id for id in new_ids if id in ids] == ids


def test_editions_are_the_same_in_another_process(learner):
    """No hash seed, no working directory and no set's order goes into them."""
    script = ("import sys; from pathlib import Path; "
              "from autograder.chapters import chapter, editions; "
              "notebook = editions.learner_edition(chapter.read_chapter(Path(sys.argv[1])), "
              "Path(sys.argv[2])); print(editions.to_text(notebook))")
    out = subprocess.run([sys.executable, "-X", "utf8", "-c", script, SMALL, REPOSITORY],
                         capture_output=True, encoding="utf-8", check=True)
    assert out.stdout.strip() == editions.to_text(learner).strip()


def test_a_later_exercise_uses_the_learners_own_earlier_one(tmp_path):
    path = changed(tmp_path,
                   ("from gearworks.pipeline import run_request",
                    "from gearworks.layers import silu"),
                   ("from gearworks.accounting import parameter_count",
                    "from gearworks.layers import swiglu"))
    cuts = editions.cuts_of(read_chapter(path))
    assert ("import silu" not in cuts["layers-swiglu"].solution
            and "silu(gate)" in cuts["layers-swiglu"].solution)


def test_exercises_on_one_class_continue_it(tmp_path, capsys):
    """Each is checked with the reference for what the others write, in whatever state."""
    chapter = with_parts(tmp_path)
    learner = editions.learner_edition(chapter, REPOSITORY)
    nbformat.validate(learner)
    cells = {cell.id: cell for cell in learner.cells}
    assert cells[f"check-{SECOND}"].source == (
        "from autograder import check\n"
        'check("kv_cache.BlockPool.share+keep+find+evict", BlockPool)')
    assert ("`kv_cache.BlockPool.share` and `keep` and `find` and `evict` · 13 points"
            in cells[f"about-{SECOND}"].source)
    assert "def __init__(self" in cells[FIRST].source and "import Blo" in cells[FIRST].source
    assert "def __init__(self" not in cells[SECOND].source
    assert "import Blo" not in cells[SECOND].source
    solved = editions.solutions(chapter)
    first, second = (sum(each.points for each in checks_of(id))
                     for id in ("kv_cache.BlockPool.allocate+free",
                                "kv_cache.BlockPool.share+keep+find+evict"))

    def scores(sources):
        """What the two check cells give."""
        namespace: dict = {}
        for id in (FIRST, SECOND):
            exec(sources.get(id, cells[id].source), namespace)
        for exercise in [exercise for exercise in chapter.exercises if exercise.is_part]:
            yield check(exercise.name, namespace["BlockPool"])

    assert list(scores(solved)) == [first, second]
    assert list(scores({FIRST: solved[FIRST]})) == [first, 0]
    assert list(scores({SECOND: solved[SECOND]})) == [0, second]
    wrong = solved[FIRST].replace("self.references[block] = 1", "self.references[block] = 2")
    assert wrong != solved[FIRST]
    low, full = scores(solved | {FIRST: wrong})
    assert low < first and full == second
    alone = solved[FIRST].replace("class BlockPool(BlockPool)", "class BlockPool")
    assert alone != solved[FIRST]
    assert list(scores(solved | {FIRST: alone})) == [first, second]


def test_the_release_of_exercises_on_one_class_is_the_learner_edition(tmp_path):
    from autograder.classes.nbgrader_preprocessors import RestoreStubs

    chapter = with_parts(tmp_path)
    learner = {cell.id: cell for cell in editions.learner_edition(chapter, REPOSITORY).cells}
    for cell in editions.source_edition(chapter, REPOSITORY).cells:
        if cell.id in (FIRST, SECOND):
            assert RestoreStubs()._replace_solution_region(cell, "python")
            assert cell.source == learner[cell.id].source


@pytest.mark.parametrize("options, what", [
    ({"second": "share, free"}, "kv_cache.BlockPool.free is exercised twice"),
    ({"more": "whole: true"}, "BlockPool is exercised twice"),
    ({"more": "given: [__init__]\nwhole: true"}, "`given` of BlockPool must be"),
    ({"second": "share, lend"}, "has no method lend"),
    ({"more": "given: [show]"}, "has no method show"),
    ({"name": "hash_blocks", "second": "share"}, "hash_blocks has no methods")])
def test_a_class_in_parts_that_do_not_fit_is_refused(tmp_path, options, what):
    with pytest.raises(ChapterError, match=re.escape(what)) as caught:
        editions.cuts_of(with_parts(tmp_path, **options))
    assert re.search(r"98_small.md, line \d+", caught.value.what) and caught.value.hint


def test_delayed_annotations_are_asked_for_once_in_the_setup(tmp_path, monkeypatch, chapter):
    real = editions.module_source
    monkeypatch.setattr(editions, "module_source", lambda name: replace(
        real(name), text="from __future__ import annotations\n" + real(name).text))
    notebook = editions.learner_edition(chapter, REPOSITORY)
    holders = [cell for cell in notebook.cells if "__future__" in cell.source]
    assert ([cell.metadata.tags for cell in holders] == [["setup"]]
            and holders[0].source.startswith("from __future__"))


def test_a_solved_notebook_differs_in_the_solution_cells_alone(chapter, learner):
    solved = editions.solve(learner, editions.solutions(chapter))
    for before, after in zip(learner.cells, solved.cells, strict=True):
        assert (before.source != after.source) == (before.id in IDS)
        if before.id in IDS:
            assert "NotImplementedError" not in after.source
            ast.parse(after.source)
    assert ("NotImplementedError"
            in learner.cells[[cell.id for cell in learner.cells].index(IDS[0])].source)
    half = editions.solve(learner, {IDS[0]: "run_request = None"})
    assert (sum("NotImplementedError" in cell.source for cell in half.cells if cell.id in IDS)
            == 2)


# --- the book edition -------------------------------------------------------------------------


def test_the_book_shows_stubs_with_the_outputs_of_the_reference(chapter, tmp_path):
    (tmp_path / "chapters").mkdir()
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    seen = []
    outputs = editions.outputs_of(chapter, tmp_path,
                                  on_cell=lambda done, cells: seen.append((done, cells)))
    page = editions.book_edition(chapter, tmp_path, outputs)
    cells = {cell.id: cell for cell in page.cells}
    assert seen[-1][0] == seen[-1][1] == sum(cell.cell_type == "code" for cell in page.cells)
    assert "install" not in cells
    assert all("write this function" in cells[id].source for id in IDS)
    assert "134515008" in str(page.cells[-1].outputs)   # the finish line ran with the reference
    points = editions.exercise_points(chapter.exercises[0])
    shown = str(cells[f"check-{IDS[0]}"].outputs)
    assert f"{points:g} of {points:g} points" in shown and f"{float(points)}" not in shown

    # The cell that fails on purpose names its error, and its traceback shows no line of the
    # reference.
    failed = next(cell for cell in page.cells
                  if "raises-exception" in cell.metadata.get("tags", []))
    assert failed.outputs[0].ename == "ZeroDivisionError"
    text = json.dumps(page, ensure_ascii=False)
    assert "token = choose(forward(unseen))" in editions.solution_lines(chapter)
    for line in editions.solution_lines(chapter):
        assert json.dumps(line, ensure_ascii=False)[1:-1] not in text


def test_a_page_that_would_show_a_solution_is_refused(tmp_path):
    path = changed(tmp_path, ('parameter_count(SHAPES["SmolLM2-135M"])',
                              "import inspect\nprint(inspect.getsource(parameter_count))"))
    (tmp_path / "chapters").mkdir()
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    chapter = read_chapter(path)
    outputs = editions.outputs_of(chapter, tmp_path)
    with pytest.raises(ChapterError, match="an output shows a solution"):
        editions.book_edition(chapter, tmp_path, outputs)


def test_a_chapter_that_does_not_run_is_named_with_the_cell(tmp_path):
    path = changed(tmp_path, ("math.sqrt(4)", "math.sqrt(-4)"))
    (tmp_path / "chapters").mkdir()
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    with pytest.raises(ChapterError, match=r"98_small.md does not run") as caught:
        editions.outputs_of(read_chapter(path), tmp_path)
    assert "'math.sqrt(-4)'" in caught.value.why and "ValueError" in caught.value.why


# --- build and its check ----------------------------------------------------------------------


def test_build_writes_and_check_finds_every_drift(root, capsys):
    def run(*arguments):
        code = cli.main([*arguments, "--root", str(root)])
        return code, capsys.readouterr()

    notebook = root / "chapters" / "98_small.ipynb"
    code, said = run("build", "--check")
    assert code == 1 and "98_small.ipynb: is not there" in said.out and not notebook.exists()
    code, said = run("build")
    assert code == 0 and said.out.count("wrote") == 3
    assert (root / "autograder" / "chapters" / "outline.json").is_file()
    assert (root / "autograder" / "source" / "ch98" / "98_small.ipynb").is_file()
    assert run("build", "--check")[0] == 0
    assert run("build")[1].out == ""                   # nothing has changed, nothing is written

    # a checkout on Windows is no drift
    notebook.write_bytes(notebook.read_bytes().replace(b"\n", b"\r\n"))
    assert run("build", "--check")[0] == 0
    source = root / "book" / "chapters" / "98_small.md"
    source.write_text(source.read_text(encoding="utf-8") + "\nOne more word.\n",
                      encoding="utf-8")
    (root / "chapters" / "97_gone.ipynb").write_text("{}", encoding="utf-8")
    code, said = run("build", "--check")
    assert (code == 1 and "98_small.ipynb: is out of date" in said.out
            and "97_gone.ipynb: has no chapter" in said.out)
    assert "Try  autograder build" in said.err


def test_build_never_replaces_a_notebook_that_somebody_has_run(root, capsys):
    assert cli.main(["build", "--root", str(root)]) == 0
    path = root / "chapters" / "98_small.ipynb"
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if cell.cell_type == "code").execution_count = 1
    nbformat.write(notebook, path)
    before = path.read_bytes()
    assert cli.main(["build", "--root", str(root)]) == 1
    assert "would be lost" in capsys.readouterr().err and path.read_bytes() == before
    assert cli.main(["build", "--root", str(root), "--force"]) == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize("binding", [
    "for Callable in [list]:\n    pass", "Callable = list", "def Callable():\n    pass",
    "if Callable := list:\n    pass"])
def test_a_cell_that_takes_a_name_of_a_solution_is_refused(tmp_path, binding):
    """In a notebook, what a learner wrote above would use the new one from then on."""
    path = changed(tmp_path, ('parameter_count(SHAPES["SmolLM2-135M"])', binding))
    with pytest.raises(ChapterError, match="gives Callable another meaning"):
        editions.check_chapter(read_chapter(path))
    own = changed(tmp_path, ('parameter_count(SHAPES["SmolLM2-135M"])',
                             "def of_its_own():\n    Callable = [Callable for Callable in ()]"))
    with pytest.raises(ChapterError, match="points"):                 # about something else
        editions.check_chapter(read_chapter(own))


def test_points_that_are_not_100_are_refused(root, monkeypatch, capsys):
    monkeypatch.setattr(editions, "REQUIRED_POINTS", 99)
    assert cli.main(["build", "--root", str(root)]) == 1
    error = capsys.readouterr().err
    assert "98_small.md: the required exercises are worth" in error and "not 99" in error
    assert "pipeline.run_request" in error
    assert not (root / "chapters").exists()


def test_the_command_line_tells_wrong_usage_from_failure(tmp_path, monkeypatch, capsys):
    for arguments, near in (
        (["bild"], "autograder build"), (["build", "--chek"], "--check"),
        (["progress", "--rot", "x"], "--root"), (["build", "--root"], "--root=VALUE"),
        (["course"], "autograder course --help"), ([], "autograder --help")):
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert "\n  Why  " in error and f"\n  Try  {near}" in error and "usage:" not in error
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    assert cli.main(["build", "--root", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n  Why  ") == error.count("\n  Try  ") == 1
    result = subprocess.run([sys.executable, "-m", "autograder", "--help"], capture_output=True,
                            encoding="utf-8")
    assert (result.returncode == 0
            and all(word in result.stdout for word in ("build", "course", "mutants")))


def test_the_learner_notebooks_of_this_repository_are_up_to_date():
    assert editions.drift(REPOSITORY) == {}


# --- chapters that are refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [("minutes: 20", "minutes: 50",
      r"98_small.md, line 30: `minutes` of run_request must be a number from 1 to 45"),
     ("minutes: 20", "minutes: '20'", "`minutes` of run_request"),
     ("level: 2", "level: 4", "`level` of run_request must be 1, 2 or 3"),
     ("level: 2", "", "`level` of run_request"),
     ("- The first token may end it.\n", "",
      "`hints` of run_request must be a list of 3 texts"),
     ("- The first token may end it.", "- First: the token.", "`hints` of run_request"),
     ("optional: true", "optional: maybe", "`optional` of forward_flops must be true or false"),
     ("level: 2", "level: 2\nmethods: run", "`methods` of run_request must be a list"),
     ("level: 2", "level: 2\nwhole: true", "`whole` of run_request must be true or false, be"),
     ("level: 2", "level: 2\ngiven: [run]", "`given` of run_request must be a list of names"),
     ("level: 2", "level: 2\nexhibit: some",
      "`exhibit` of run_request must be the name of a mutant, in a cell with"),
     ("level: 2", "level: 2\npoints: 20", "there is no key 'points'"),
     ("[hide-input]", "[hide-inputs]", "line 24: there is no tag 'hide-inputs'"),
     ("[hide-input]", "hide-input", "cannot read 98_small.md"),
     ("import run_request", "import run_request as run", "an exercise is one import"),
     ("import run_request", "import Completion, run_request, x", "an exercise is one import"),
     ("from gearworks.pipeline import run_request", "import gearworks.pipeline",
      "an exercise is one import"),
     ("from gearworks.pipeline import run_request", "from gearworks.pipeline import (",
      "the exercise is no Python"),
     ("import forward_flops", "import parameter_count",
      "line 67: parameter_count is exercised twice"),
     ("import math\n", "import math\nfrom gearworks.pipeline import run_request\n",
      "line 12: this cell imports run_request from gearworks.pipeline"),
     ('parameter_count(SHAPES["SmolLM2-135M"])', "from gearworks.accounting import *",
      "this cell imports *"),
     ("[setup]", "[hide-input]", "line 12: a chapter's first code cell is its setup"),
     ("[finish]", "[finish, setup]", "a chapter's first code cell is its setup"),
     ("math.sqrt(4)", "math.sqrt(4", "line 24: the cell is no Python"),
     ("A formula", "```{note}\nA formula\n```\n", r"line 20: ```{note} is no CommonMark"),
     ("A formula", ":::{tip}\n:::\nA formula", "is no CommonMark"),
     ("A formula", "See {doc}`setup`. A formula", "is no CommonMark"),
     ("[Count the arrays.", "[{", "98_small.md")])
def test_a_broken_chapter_is_refused_with_file_and_line(tmp_path, old, new, what):
    with pytest.raises(ChapterError, match=re.escape(what)) as caught:
        read_chapter(changed(tmp_path, (old, new)))
    assert "98_small.md" in caught.value.what and caught.value.why and caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [("import run_request", "import run_requests",
      "line 30: there is no pipeline.run_requests"),
     ("gearworks.pipeline import run_request", "gearworks.pipe import run_request",
      "there is no module gearworks.pipe"),
     ("import run_request", "import Completion",
      "there is nothing to write in pipeline.Completion"),
     ("level: 2", "level: 2\nmethods: [run]", "pipeline.run_request has no methods"),
     ("gearworks.pipeline import run_request", "gearworks.attention import rope_angles",
      "rope_angles has no checks")])
def test_an_exercise_that_the_reference_lacks_is_refused(tmp_path, old, new, what):
    with pytest.raises(ChapterError, match=re.escape(what)) as caught:
        editions.check_chapter(read_chapter(changed(tmp_path, (old, new))))
    assert "98_small.md, line 30" in caught.value.what


def test_a_picture_that_is_not_there_is_refused(tmp_path):
    chapter = read_chapter(changed(tmp_path, ("gear.svg", "gone.svg")))
    with pytest.raises(ChapterError,
                       match="98_small.md, line 20: cannot put "
                             "../autograder/tests/data/gone.svg into"):
        editions.learner_edition(chapter, REPOSITORY)


def test_magics_are_read_as_jupyter_reads_them(tmp_path):
    read_chapter(changed(tmp_path, ("math.sqrt(4)", "%matplotlib inline\n!echo hi\nmath?")))


@pytest.mark.parametrize(("name", "text", "what"), [("small.md", "", "cannot be a chapter"),
                                                    ("97_gone.md", None, "cannot read"),
                                                    ("97_latin.md", b"caf\xe9", "cannot read")])
def test_a_file_that_is_no_chapter_is_refused(tmp_path, name, text, what):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ChapterError, match=what):
        read_chapter(tmp_path / name)


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
@pytest.mark.parametrize(("command", "code", "says"), [
    ("progress . --root . >&-", 0, ""), ("--help 2>&- <&-", 0, ""),
    ("progress . --root . >/dev/full", 1, "could not be written")])
def test_closed_and_full_streams(command, code, says, root):
    result = subprocess.run(["sh", "-c", f"{sys.executable} -m autograder {command}"], cwd=root,
                            capture_output=True, encoding="utf-8", timeout=120)
    assert (result.returncode == code and says in result.stderr
            and "Traceback" not in result.stderr)
