"""A learner's notebook: what `check` finds in the cells that a kernel has run, and what stands
in for what is not written. With --run-all, every chapter as it is given: some ten minutes."""

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.chapters.outline import outline
from autograder.checking import checks_of
from autograder.reference.cutting import stub_of
from autograder.submissions.history import notebook_so_far
from autograder.tests.test_isolation import REPOSITORY
from gearworks import museum

NORM = "layers.rms_norm"
STUB = stub_of(NORM)
RIGHT = ("def rms_norm(x, weight, eps):\n    mean_square = (x * x).mean(-1, keepdims=True)\n"
         "    return x / np.sqrt(mean_square + np.float32(eps)) * weight")
CHECK = f'check("{NORM}", rms_norm)'


def worth(exercise):
    return sum(check.points for check in checks_of(exercise))


class Kernel:
    """An IPython in this process."""

    def __init__(self, capsys):
        self._shell, self._capsys = InteractiveShell.instance(), capsys
        self.run("import numpy as np\nfrom autograder import check")

    def run(self, source):
        """A cell's result, and all that it shows."""
        self._capsys.readouterr()
        done = self._shell.run_cell(source, store_history=True)
        done.raise_error()
        return done.result, " ".join(self._capsys.readouterr().out.split())

    def __getitem__(self, name):
        return self._shell.user_ns[name]


@pytest.fixture
def kernel(capsys):
    yield Kernel(capsys)
    InteractiveShell.clear_instance()


def test_below_an_unwritten_exercise_the_reference_stands_in_and_earns_nothing(kernel):
    kernel.run(STUB)
    for _ in range(2):                   # in the second run the name is the reference's already
        score, said = kernel.run(CHECK)
        assert score == 0.0 and "not attempted yet; 0 of 10 points" in said
        assert said.count("Not written yet: rms_norm. The reference stands in for it") == 1
        assert len(kernel.run("rms_norm(np.ones(2), np.ones(2), 0)")[0]) == 2
    kernel.run(RIGHT)
    score, said = kernel.run(CHECK)
    assert score == 10.0 and "stands in" not in said
    assert kernel["rms_norm"].__module__ == "__main__"
    kernel.run(STUB)                                                # begun anew
    assert kernel.run(CHECK)[0] == 0.0


def test_what_is_begun_counts_as_it_is_now(kernel):
    kernel.run(RIGHT)
    kernel.run("def rms_norm(x, weight, eps):\n    x = x * 2\n    raise NotImplementedError")
    score, said = kernel.run(CHECK)
    assert score == 0.0 and "stands in" in said


def test_an_import_of_the_reference_earns_nothing(kernel, monkeypatch):
    kernel.run("from gearworks.layers import rms_norm")
    assert kernel.run(CHECK)[0] == 0.0
    monkeypatch.setenv("AUTOGRADER_SUBJECT", "reference")           # as the book's pages say it
    assert kernel.run(CHECK)[0] == 10.0


def test_what_no_cell_defines_is_checked_as_it_is(kernel):
    kernel._shell.user_ns["rms_norm"] = lambda x, weight, eps: x
    score, said = kernel.run(CHECK)
    assert 0 <= score < 10 and "stands in" not in said
    kernel.run("def other(x, weight, eps):\n    return x")
    assert kernel.run(f'check("{NORM}", other)')[0] < 10


def test_a_cell_that_does_not_run_by_itself_says_so(kernel):
    kernel.run("FACTOR = input('?') if False else 1")
    kernel.run(RIGHT.replace("* weight", "* weight * FACTOR"))
    score, said = kernel.run(CHECK)
    assert score == 0.0 and "FACTOR of cell" in said and "not brought along" in said
    kernel.run(f"LIMIT = [1][0]\n{RIGHT}\nrms_norm.limit = LIMIT")
    assert kernel.run(CHECK)[0] == 10.0


COUNT = "accounting.parameter_count"
TWO = "accounting.bytes_moved+roofline_tokens_per_second"


def test_an_exercise_is_checked_with_the_reference_and_says_when_a_demo_will_not_be(kernel):
    """The demo below runs what the learner wrote before, which is wrong."""
    chapter = read_chapter(REPOSITORY / "book" / "chapters" / f"{outline()[0].stem}.md")
    solved = {exercise.name: editions.solutions(chapter)[exercise.grade_id]
              for exercise in chapter.exercises}
    assert "parameter_count(" in solved[TWO]
    check_two = f'check("{TWO}", bytes_moved, roofline_tokens_per_second)'
    kernel.run(solved[COUNT].replace("return ", "return 3 + ", 1))
    assert kernel.run(f'check("{COUNT}", parameter_count)')[0] < worth(COUNT)
    kernel.run(solved[TWO])
    score, said = kernel.run(check_two)
    assert score == worth(TWO)
    assert "with the reference's parameter_count. The cells below use yours" in said
    kernel.run(solved[COUNT])
    kernel.run(f'check("{COUNT}", parameter_count)')
    assert "cells below use yours" not in kernel.run(check_two)[1]


def test_half_of_a_pair_stays_the_learners(kernel):
    kernel.run("def count_pairs(words):\n    raise NotImplementedError\n\n"
               "def merge_pair(symbols, pair, merged):\n    return 'mine'")
    said = kernel.run('check("tokenizer.count_pairs+merge_pair", count_pairs, merge_pair)')[1]
    assert "Not written yet: count_pairs. The reference" in said
    assert kernel.run("merge_pair([], (1, 2), 3)")[0] == "mine"
    assert kernel["count_pairs"].__module__ == "gearworks.tokenizer"


def test_open_methods_of_a_class_are_filled(kernel):
    exercise = "kv_cache.BlockPool.allocate+free"
    kernel.run(stub_of(exercise))
    check_it = f'check("{exercise}", BlockPool)'
    for _ in range(2):
        score, said = kernel.run(check_it)
        assert score == 0.0 and "Not written yet: BlockPool.allocate, BlockPool.free." in said
        assert kernel.run("BlockPool(3, 2).allocate()")[0] == 0
    kernel.run("class BlockPool(BlockPool):\n    def allocate(self, after=None):\n"
               "        return 'mine'")
    said = kernel.run(check_it)[1]
    assert "Not written yet: BlockPool.free." in said
    assert kernel.run("BlockPool(3, 2).allocate()")[0] == "mine"


def test_an_exhibit_is_never_replaced(kernel):
    [chapter] = [each for each in outline() if each.stem.startswith("01")]
    [exercise] = [each for each in chapter.exercises if each.exhibit]
    start = editions.cuts_of(chapter)[exercise.grade_id].stub
    kernel.run(start)
    score, said = kernel.run(f'check("{exercise.name}", conversation_ids)')
    assert score == 0.0 and "stands in" not in said
    assert kernel["conversation_ids"] is not museum.conversation_ids


def sources(inputs, names):
    """The cells of the notebook that a kernel knows, in a chapter that exercises a name."""
    chapter = next(each for each in outline()
                   if any(exercise.names == names for exercise in each.exercises))
    return {cell.number: cell.source for cell in notebook_so_far(["", *inputs], chapter).cells}


def test_a_changed_definition_stands_in_the_notebook_once():
    count = "def parameter_count(shape):\n    return {}"
    inputs = ["import math", f"half = 0.5\n{count.format(1)}",
              "def run_request():\n    return 1", "import math", count.format(2), "%time 1"]
    assert sources(inputs, ("parameter_count",)) == {
        2: "half = 0.5", 3: inputs[2], 4: inputs[3], 5: inputs[4], 6: inputs[5]}
    goes_on = "class BlockPool(BlockPool):\n    def {}(self):\n        return 1"
    inputs = [goes_on.format(name) + number for name, number in
              (("allocate", "1"), ("share", ""), ("allocate", "2"))]
    assert sources(inputs, ("BlockPool",)) == {2: inputs[1], 3: inputs[2]}


def test_the_outline_is_the_chapters():
    for path, known in zip(chapter_paths(REPOSITORY / "book" / "chapters"), outline(),
                           strict=True):
        read = read_chapter(path)
        assert read.stem == known.stem
        assert [each.components for each in read.exercises] == [
            each.components for each in known.exercises]


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:
        paths = chapter_paths(REPOSITORY / "book" / "chapters")
        chosen = paths if metafunc.config.getoption("--run-all") else paths[:1]
        metafunc.parametrize("path", chosen, ids=lambda path: path.stem)


@pytest.mark.long
def test_run_all_on_an_untouched_notebook_reaches_the_end(path):
    notebook = nbformat.read(REPOSITORY / "chapters" / f"{path.stem}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=editions.CELL_SECONDS, kernel_name="python3",
                   resources={"metadata": {"path": str(REPOSITORY / "chapters")}}).execute()
    scores = [output.data["text/plain"] for cell in notebook.cells
              if cell.metadata.get("nbgrader", {}).get("grade")
              for output in cell.outputs if output.output_type == "execute_result"]
    assert len(scores) == len(read_chapter(path).exercises) and {*scores} == {"0.0"}
