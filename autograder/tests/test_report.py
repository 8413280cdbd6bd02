"""What a learner sees of a report, and what nbgrader records.
Eight seconds: real kernels run a notebook."""

from dataclasses import replace
from html.parser import HTMLParser

import nbformat
import pytest
from nbclient import NotebookClient
from nbgrader.utils import determine_grade

import autograder
from autograder.checking import checks_of
from autograder.checking.report import markup, text
from autograder.checking.running import Outcome, Report, Status, run_exercise
from autograder.judge.diagnosis import agree, fail_alike
from autograder.judge.wire import Message
from gearworks.layers import rms_norm
from gearworks.serving.engine import LLMEngine
from gearworks.serving.scheduler import Scheduler

HOSTILE = "</td><script>alert(1)</script> & \u202e \U0001f600"


def outcome(status, **message):
    return Outcome("f", "Says so.", 4, True, status, **message)


def report(*outcomes):
    return Report("arithmetic.double", outcomes, 10.0, seed=7)


class Table(HTMLParser):
    """Collects tags and text, and insists on every tag being closed."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.headers, self.words = [], [], [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        if tag == "th":
            self.headers.append(dict(attrs)["scope"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_failure_has_three_parts_in_text_and_in_html():
    shown = report(outcome(Status.FAILED, expected="twice 4", found="16", hint="add"),
                   outcome(Status.PASSED))
    lines = text(shown).splitlines()
    assert lines[1].startswith("✗ Says so. (failed)") and lines[1].endswith("0 / 4 points")
    assert [line.split()[0] for line in lines[2:5]] == ["Expected", "Found", "Try"]
    table = Table(markup(shown))
    assert table.headers == ["col", "col", "col", "row", "row"]
    assert {"caption", "dl", "dt", "dd"} <= {*table.tags}
    assert {"failed", "passed", "twice 4.", "16.", "0 of 4", "4 of 4"} <= {*table.words}


@pytest.mark.parametrize("statuses, is_shut, headline", [
    ([Status.PASSED, Status.PASSED], True, "10 of 10 points, all 2 checks passed"),
    ([Status.NOT_ATTEMPTED, Status.NOT_ATTEMPTED], True, "not attempted yet; 0 of 10 points"),
    ([Status.PASSED, Status.FAILED], False, "5 of 10 points"),
    ([Status.RAISED, Status.PASSED], False, "5 of 10 points")])
def test_a_report_that_asks_for_nothing_is_one_line(statuses, is_shut, headline):
    shown = report(*(outcome(status, expected="twice 4" if status is Status.FAILED else "")
                     for status in statuses))
    source = markup(replace(shown, notes=("strange",)))
    table = Table(source)
    assert ("details" in table.tags) == is_shut and "table" in table.tags
    assert headline in "".join(table.words).replace("arithmetic.double: ", "")
    assert "strange" in source.rpartition("</details>")[2]           # never folded away


def test_columns_keep_their_width_and_backticks_become_code():
    named = Outcome("f", "`forward` sees <ids>.", 4, True, Status.FAILED, expected="all",
                    found="a ` and a `", hint="`[id]`")
    source = markup(report(named))
    assert ("table-layout:fixed" in source and 'width:33%">Check<' in source
            and 'width:5em">Points<' in source)
    assert "<code>forward</code> sees &lt;ids&gt;." in source and "<code>[id]</code>." in source
    assert "a ` and a `." in source                              # what code gave stays as it is
    assert "`forward`" in text(report(named)) and Table(source).tags.count("code") == 2


def test_whatever_code_says_is_escaped():
    shown = report(outcome(Status.RAISED, error="<b>", expected=HOSTILE, found=HOSTILE,
                           hint=HOSTILE))
    assert "script" not in Table(markup(shown)).tags
    assert "alert(1)" in markup(shown)


def test_the_first_figure_stands_below_the_table_and_not_in_the_text():
    shown = report(outcome(Status.PASSED), outcome(Status.FAILED, figure="<p>one</p>"),
                   outcome(Status.FAILED, figure="<p>two</p>"))
    source = markup(shown)
    assert source.endswith("<p>one</p>") and "two" not in source
    assert "In pictures, “Says so.”:" in Table(source).words
    assert "one" not in text(shown)
    assert shown.outcomes[1].hidden().figure == ""              # it shows what the check did


@pytest.mark.parametrize("exercise, wrong", [
    ("scheduler.Scheduler.chunk", type("Greedy", (Scheduler,), {
        "chunk": lambda self, one, budget: min(one.num_pending_tokens, budget)})),
    ("engine.LLMEngine.step", type("Single", (LLMEngine,), {
        "guess_ahead": lambda self: self.scheduler.running[1:2] and setattr(
            self.scheduler, "max_num_batched_tokens", 5)}))])
def test_a_failed_check_of_serving_opens_a_timeline_where_the_runs_part(exercise, wrong):
    found = run_exercise(exercise, [wrong], seed=1)
    assert Status.FAILED in {each.status for each in found.outcomes}
    source = markup(found)
    assert source.count("In pictures") == 1 and "The runs part here." in source
    assert "in your run" in source and "The runs part here." not in text(found)


def test_results_are_words_and_what_was_said_is_not_repeated():
    kinds = [outcome(status, error="ValueError", expected="no error", found="it") for status in
             (Status.RAISED, Status.RAISED, Status.OUT_OF_TIME, Status.NOT_ATTEMPTED)]
    shown = text(report(*kinds))
    for words in ("raised ValueError", "out of time", "not attempted", "as above"):
        assert words in shown


def test_not_attempted_is_not_wrong():
    shown = report(outcome(Status.NOT_ATTEMPTED))
    assert "not attempted yet; 0 of 10 points" in text(shown) and "✗" not in text(shown)
    assert not shown.attempted and shown.score == 0.0


def test_the_report_tells_its_seed_and_how_to_run_it_again(capsys):
    def wrong(x, weight, eps):
        return x + weight[0]
    autograder.check("layers.rms_norm", wrong, seed=123)
    first = capsys.readouterr().out
    assert 'check("layers.rms_norm", …, seed=123)' in " ".join(first.split())
    autograder.check("layers.rms_norm", wrong, seed=123)
    assert capsys.readouterr().out == first
    autograder.check("layers.rms_norm", wrong, seed=124)
    assert capsys.readouterr().out != first


def test_the_score_is_a_plain_float(capsys):
    assert type(autograder.check("layers.rms_norm", rms_norm)) is float
    public = [check for check in checks_of("layers.rms_norm") if check.public]
    assert capsys.readouterr().out.count("✓") == len(public)


@pytest.mark.parametrize("exercise, subjects, says",
                         [("layers.rms_nrom", [rms_norm], "'layers.rms_norm'"),
                          ("nowhere.at_all", [rms_norm], "no exercise"),
                          ("layers.rms_norm", [None], "check('layers.rms_norm', rms_norm)"),
                          ("layers.rms_norm", [], "themselves"),
                          ("layers.rms_norm", [rms_norm, rms_norm], "themselves")])
def test_a_damaged_check_cell_says_what_is_wrong_and_is_worth_nothing(exercise, subjects, says,
                                                                      capsys):
    assert autograder.check(exercise, *subjects) == 0.0
    assert says in " ".join(capsys.readouterr().out.split())


def test_a_known_mistake_is_named_and_an_unknown_one_is_not(capsys):
    import numpy as np

    def centred(x, weight, eps):
        x = x - x.mean(axis=-1, keepdims=True)
        return (x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps))
                * weight).astype(np.float32)

    def halved(x, weight, eps):
        return rms_norm(x, weight, eps) / np.float32(2)
    autograder.check("layers.rms_norm", centred)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("This is what you get when the mean is subtracted first") == 1
    assert "The same mistake as above gives this." in shown
    autograder.check("layers.rms_norm", halved)
    assert "This is what you get" not in capsys.readouterr().out


def test_a_known_mistake_is_named_though_no_two_runs_take_equally_long(capsys):
    from autograder.variants.mutation import load_mutant, mutants_of
    mutant = next(mutant for mutant in mutants_of("decoding.generate")
                  if mutant.name == "stop-ids-ignored")
    autograder.check("decoding.generate", *load_mutant("decoding.generate", mutant))
    assert mutant.says in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("mine, line, alike", [
    ("cannot broadcast (2, 3)", "line 4: y = x + k", False),
    ("cannot broadcast (5, 3)", "line 4: y = x + k", True),
    ("no place left", 'line 4: raise ValueError("no place left")', True)])
def test_two_mistakes_that_end_in_errors_are_one_only_where_python_says_the_same(mine, line,
                                                                                 alike):
    def record(text: str, line: str) -> list[Message]:
        return [Message({"error": {"kinds": ["ValueError"], "text": text, "line": line}})]
    theirs = record("cannot broadcast (5, 3)", "")
    assert agree(record(mine, line), theirs)
    assert fail_alike(record(mine, line), theirs) == alike


def test_a_learners_test_that_fails_on_right_code_has_no_known_mistake(capsys):
    def misspelt(conversation_ids):
        assert conversation_ids([], "ba", "abc") == {"input_id": [1, 4, 3]}
    autograder.check("museum.conversation_ids_test", misspelt)
    shown = " ".join(capsys.readouterr().out.split())
    assert "is what this line asserts right?" in shown and "known mistake" not in shown


def test_a_console_that_knows_no_marks_still_prints(monkeypatch):
    import io
    import sys
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)
    assert autograder.check("layers.rms_norm", rms_norm) == 10.0


RIGHT = ("def rms_norm(x, weight, eps):\n    import sys, warnings\n    warnings.warn('hm')\n"
         "    print('to stderr', file=sys.stderr)\n    print('to stdout')\n"
         "    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight")
CELLS = {"right": (RIGHT, 10.0),
         "in place": ("def rms_norm(x, weight, eps):\n    x /= np.sqrt((x * x).mean(-1, "
                      "keepdims=True) + np.float32(eps))\n    return x * weight", None),
         "stub": ('def rms_norm(x, weight, eps):\n    raise '
                  'NotImplementedError("layers.rms_norm: write this")', 0.0),
         "exits": ("def rms_norm(x, weight, eps):\n    raise SystemExit", 0.0)}


@pytest.fixture(scope="module")
def graded_cells():
    """One notebook with a definition and a check cell for each of CELLS,
    run by a real kernel."""
    kernel = {"name": "python3", "display_name": "", "language": ""}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells.append(nbformat.v4.new_code_cell("import numpy as np"))
    for source, _ in CELLS.values():
        metadata = {"nbgrader": {"grade": True, "solution": False, "points": 10}}
        notebook.cells += [nbformat.v4.new_code_cell(source),
                           nbformat.v4.new_code_cell('from autograder import check\n'
                                                     'check("layers.rms_norm", rms_norm)',
                                                     metadata=metadata)]
    NotebookClient(notebook, timeout=120).execute()
    return notebook.cells[2::2]


@pytest.mark.parametrize("position", range(len(CELLS)))
def test_nbgrader_records_the_score(graded_cells, position):
    cell = graded_cells[position]
    score, points = determine_grade(cell)
    kinds = [each.output_type for each in cell.outputs if each.output_type != "stream"]
    assert kinds == ["display_data", "execute_result"] and points == 10
    assert {*cell.outputs[-2].data} == {"text/plain", "text/html"}
    expected = [*CELLS.values()][position][1]
    assert (0 < score < 10) if expected is None else score == expected
    assert all(each.get("name") != "stderr" for each in cell.outputs)
