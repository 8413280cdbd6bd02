"""The certificate: what it says of an engine that is partly the learner's, and how it looks.

The race itself runs with --long: a minute of processor time, most of it to load three engines.
"""

import hashlib
import html
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autograder import cli
from autograder.certificate import trials
from autograder.certificate.certificate import (MODULES, PARTLY, REFERENCE, YOURS, certificate,
                                                engine_hash)
from autograder.certificate.trials import Race, Suite, race_of, run_race, run_suite, suite_of
from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.submissions import progress
from autograder.submissions.attempts import find_components
from autograder.submissions.intake import read_notebooks
from autograder.submissions.overlay import assemble
from gearworks import __version__, viz

REPOSITORY = Path(__file__).resolve().parents[2]
MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOOP = "pipeline-run_request"
ANSWER = "Because <b>time</b> & teeth\nmust agree."
SUITE = Suite(120, 2, 3, 600.0, ("test_model.test_logits", "test_x.test_<i>"))
RACE = race_of({"question": "Why?", "answer": ANSWER, "equal": 7, "tokens": 9, "threads": 2,
                "notes": ["the compiled engine: no Numba"],
                "lanes": {"Hugging Face generate, float32": 0.1, "this engine, NumPy": 0.04}})


@pytest.fixture(scope="module")
def engine(tmp_path_factory, chapter, learner):
    """An engine with one exercise of three solved: its folder, notebook, parts and progress."""
    folder = tmp_path_factory.mktemp("certificate")
    path = folder / "98_small.ipynb"
    solved = {LOOP: editions.solutions(chapter)[LOOP]}
    path.write_text(editions.to_text(editions.solve(learner, solved)), encoding="utf-8")
    components = find_components([chapter], read_notebooks(path))
    gears = assemble(components, folder / "engine")
    return folder / "engine", path, gears, progress.measure([chapter], components)


@pytest.fixture(scope="module")
def told(engine):
    folder, path, gears, chapters = engine
    return certificate('Ada <script>alert("x")</script>', gears, chapters, folder, [path], MADE,
                       SUITE, RACE)


class Page(HTMLParser):
    """The text of a page, and its elements."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.data = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.data = data
            self.tags.append(("", {}))
        self.text += data


def test_it_says_whose_each_part_is(told):
    [chapter] = told.chapters
    whose = {part.exercise: (part.whose, part.stage) for part in chapter.parts}
    assert whose["pipeline.run_request"] == (YOURS, "passed")
    assert whose["accounting.parameter_count"] == (REFERENCE, "not started")
    assert told.own == 1 and told.all == len(chapter.parts) == 3
    place = {part.exercise: part.where for part in chapter.parts}
    assert re.fullmatch(r"98_small\.ipynb, cell \d+", place["pipeline.run_request"])
    assert place["accounting.parameter_count"] == "not started"


def test_hashes_are_of_the_files_and_the_engine(told, engine, tmp_path):
    folder, path, _, _ = engine
    assert told.hashes == {path.name: hashlib.sha256(path.read_bytes()).hexdigest(),
                           "the engine": engine_hash(folder)}
    module = folder / "gearworks" / "pipeline.py"
    before, text = engine_hash(folder), module.read_bytes()
    try:
        module.write_bytes(text + b"\n")
        assert engine_hash(folder) != before
    finally:
        module.write_bytes(text)
    assert engine_hash(folder) == before


def test_the_page_holds_it_all_and_escapes_what_is_not_ours(told):
    text = told.as_page()
    page = Page(text)
    seen = " ".join(page.text.split())
    for said in ("The engine of Ada <script>alert", "1 of 3", "120 of 122", "2.50 × HF",
                 "The first 7 of 9 tokens", "test_x.test_<i>", "the compiled engine: no Numba",
                 "10 minutes", __version__, "2026-03-01", told.hashes["the engine"],
                 told.machine, "Because <b>time</b> & teeth"):
        assert said in seen, said
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "certificate"}]
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "b", "i")]
    assert not re.search(r'(?:src|href)="', text) and "url(" not in text


def test_the_data_in_the_page_carries_its_own_hash(told):
    data = json.loads(Page(told.as_page()).data)
    sha256 = data.pop("sha256")
    again = json.dumps(data, ensure_ascii=False, sort_keys=True)
    assert hashlib.sha256(again.encode()).hexdigest() == sha256
    assert sha256 in told.as_page() and data["race"]["answer"] == ANSWER
    assert data["made"] == "2026-03-01T12:00:00+00:00"


def test_without_trials_it_says_so(engine):
    folder, path, gears, chapters = engine
    text = html.unescape(certificate("", gears, chapters, folder, [path], MADE).as_page())
    assert ("It was not asked." in text and "The engine's tests were not run." in text
            and "An engine of one's own gears" in text and "× HF" not in text)
    broken = certificate("", gears, chapters, folder, [path], MADE, Suite(problem="no pytest"),
                         Race(problem="ValueError: <no>"))
    text = broken.as_page()
    assert "There is no result: no pytest." in text and "ValueError: &lt;no&gt;" in text


def test_a_gear_is_lit_when_all_that_is_required_of_it_is_ones_own():
    """On the real chapters: each gear has exercises in its chapter."""
    chapters = [read_chapter(path) for path in chapter_paths(REPOSITORY / "book" / "chapters")]
    assert MODULES.keys() == viz.GEARS.keys()
    for name, gear in viz.GEARS.items():
        [chapter] = [each for each in chapters if each.stem.startswith(f"{gear.chapter:02}_")]
        required = [exercise.name for exercise in chapter.exercises if not exercise.optional]
        for module in MODULES[name]:
            assert any(each.startswith(f"{module}.") for each in required), module


def test_half_a_gear_is_not_lit(engine):
    folder, path, gears, [chapter] = engine

    def lit(stages):
        exercises = tuple(progress.ExerciseProgress(f"scheduler.f{at}", optional, stage, 1, 1)
                          for at, (stage, optional) in enumerate(stages))
        engine_s = progress.ExerciseProgress("engine.step", False, progress.Stage.PASSED, 1, 1)
        found = [progress.ChapterProgress("06_serving", "Six", (*exercises, engine_s))]
        own = [FakeGear(each.exercise, True) for each in found[0].exercises]
        return certificate("", own, found, folder, [path], MADE).lit
    passed, failing = progress.Stage.PASSED, progress.Stage.FAILING
    assert lit([(passed, False), (passed, False)]) == ("scheduler",)
    assert lit([(passed, False), (failing, False)]) == ()
    assert lit([(passed, False), (failing, True)]) == ("scheduler",)


class FakeGear:
    """A gear of an exercise, with what a certificate asks of it."""

    def __init__(self, exercise, is_learners, open_methods=()):
        self.is_learners, self.why = is_learners, "" if is_learners else "not started"
        self.component = self
        self.exercise, self.name = self, exercise
        self.place, self.open_methods = "a.ipynb, cell 1", open_methods


@pytest.mark.parametrize("gears, whose", [
    ([True], YOURS), ([True, False], PARTLY), ([False, False], REFERENCE), ([], REFERENCE)])
def test_two_names_of_an_exercise_may_be_of_two_people(engine, gears, whose):
    folder, path, _, _ = engine
    found = [progress.ChapterProgress("06_x", "Six", (
        progress.ExerciseProgress("m.a+b", False, progress.Stage.PASSED, 1, 1),))]
    own = [FakeGear("m.a+b", is_learners) for is_learners in gears]
    [chapter] = certificate("", own, found, folder, [path], MADE).chapters
    assert chapter.parts[0].whose == whose


def test_of_a_class_some_methods_may_be_the_reference_s(engine):
    folder, path, _, _ = engine
    found = [progress.ChapterProgress("06_x", "Six", (
        progress.ExerciseProgress("m.C.a+b", False, progress.Stage.FAILING, 0, 1),))]
    [chapter] = certificate("", [FakeGear("m.C.a+b", True, ("b",))], found, folder, [path],
                            MADE).chapters
    assert chapter.parts[0].whose == PARTLY


def test_the_suite_runs_on_the_engine_and_counts(engine, tmp_path):
    """What passes, fails and is skipped, in the engine's own package."""
    folder = engine[0]
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--engine')\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "import pathlib, pytest, gearworks.pipeline\n"
        "def test_a():\n"
        f"    assert {str(folder)!r} in gearworks.pipeline.__file__\n"
        "def test_b():\n    assert 0\n"
        "def test_c():\n    pytest.skip('no')\n", encoding="utf-8")
    suite = run_suite(folder, tmp_path, ("-p", "no:xdist"))
    assert (suite.passed, suite.failed, suite.skipped) == (1, 1, 1)
    assert suite.not_passed == ("test_it.test_b",) and not suite.problem
    gone = run_suite(folder, tmp_path / "nowhere", ("-p", "no:xdist"))
    assert gone.passed == 0 and (gone.problem or gone.failed == 0)


def test_an_engine_that_cannot_race_is_a_result(engine, tmp_path, monkeypatch):
    (tmp_path / "gearworks").mkdir()
    (tmp_path / "gearworks" / "__init__.py").write_text("raise ValueError('no gear')\n",
                                                        encoding="utf-8")
    benchmarks = REPOSITORY / "solutions" / "benchmarks"
    assert run_race(tmp_path, benchmarks).problem == "ValueError: no gear"
    monkeypatch.setattr(trials, "RACE_SECONDS", 0)
    assert "did not end within" in run_race(engine[0], benchmarks).problem


def test_errors_of_fixtures_count_as_tests_that_did_not_pass():
    suite = suite_of('<testsuites><testsuite tests="2" failures="0" errors="1" skipped="0" '
                     'time="1"><testcase classname="solutions.tests.test_a.C" name="b">'
                     '<error/></testcase></testsuite></testsuites>')
    assert (suite.passed, suite.failed, suite.not_passed) == (1, 1, ("C.b",))


def test_the_command_makes_the_engine_and_the_page(engine, tmp_path, chapter, capsys):
    root = tmp_path / "root"
    (root / "book" / "chapters").mkdir(parents=True)
    (root / "pyproject.toml").write_text("", encoding="utf-8")
    small = Path(__file__).parent / "data" / "98_small.md"
    (root / "book" / "chapters" / small.name).write_bytes(small.read_bytes())
    command = ["certificate", str(engine[1]), "--root", str(root), "--name", "Grace",
               "--engine", str(tmp_path / "my"), "--to", str(tmp_path / "c.html"),
               "--without", "race"]
    assert cli.main(command) == 1                       # there are no tests in that root
    assert "--without suite" in capsys.readouterr().err
    assert cli.main([*command, "--without", "suite"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "The engine of Grace" in text and engine_hash(tmp_path / "my") in text
    assert (tmp_path / "my" / "gears.json").is_file()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_looks_right_everywhere(browser, barriers, told, tmp_path, scheme, width):
    """Nothing is asked of anyone, nothing runs, nothing sticks out, and axe finds nothing."""
    path = tmp_path / "certificate.html"
    path.write_text(told.as_page(), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme,
                                  bypass_csp=True)      # for axe, not for the page
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert barriers(page) == []
    assert asked == [path.as_uri()] and said == []
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    context.close()


@pytest.mark.long
def test_an_engine_answers_and_races(engine):
    found = run_race(engine[0], REPOSITORY / "solutions" / "benchmarks")
    assert not found.problem
    assert found.equal == found.tokens > 20 and len(found.answer) > 60
    names = [lane.name for lane in found.lanes]
    assert names[:2] == ["Hugging Face generate, float32", "this engine, NumPy"]
    assert found.lanes[0].times_hf == 1
    assert all(lane.tokens_per_second > 0.1 for lane in found.lanes)
