"""Checks, how they are run, and what they say. Four seconds."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograder
from autograder.checking import (MESSAGE_WORDS, CheckFailure, check, checks_of, error_text,
                                 exercises, expect_close, expect_equal, expect_error,
                                 expect_unchanged)
from autograder.checking import running as grading
from autograder.checking.running import Status, run_check, run_checks, run_exercise
from autograder.processes.limits import TimeLimit, time_limit
from autograder.reference.names import components_of, names_of
from gearworks.errors import ModelError
from gearworks.layers import rms_norm


@check("arithmetic.double", points=3, public=True)
def doubles(double, rng):
    """Twice a number."""
    number = int(rng.integers(10, 99))
    expect_equal(double(number), 2 * number, of=f"twice {number}", hint="Add it to itself.")


def learners(source: str, name: str = "double", tmp_path=None):
    """A function as a learner's file defines it."""
    path = tmp_path / "cell.py"
    path.write_text(source, encoding="utf-8")
    namespace = {}
    exec(compile(source, str(path), "exec"), namespace)
    return namespace[name]


def test_a_right_function_passes_and_a_wrong_one_fails():
    right = run_check(doubles, [lambda x: x + x], 1)
    wrong = run_check(doubles, [lambda x: x * x], 1)
    assert (right.status, right.earned) == (Status.PASSED, 3)
    assert (wrong.status, wrong.earned) == (Status.FAILED, 0)
    assert wrong.expected.startswith("twice ") and wrong.hint == "Add it to itself."


def test_the_same_seed_gives_the_same_inputs_and_another_one_others():
    def inputs(seed):
        seen = []
        run_check(doubles, [seen.append], seed)
        return seen
    assert inputs(5) == inputs(5)
    assert len({inputs(seed)[0] for seed in range(20)}) > 3


def test_an_error_shows_its_type_its_message_and_the_learners_own_line(tmp_path):
    source = ("import json\n\ndef double(x):\n    return inner(x)\n\ndef inner(x):\n    return "
              "json.loads('{')  # here\n")
    outcome = run_check(doubles, [learners(source, tmp_path=tmp_path)], 1)
    assert (outcome.status, outcome.error) == (Status.RAISED, "JSONDecodeError")
    assert "Expecting property name" in outcome.found
    assert outcome.found.endswith("raised at line 7: return json.loads('{')  # here")


def test_an_error_within_compiled_code_is_shown_at_the_learners_line(tmp_path):
    broken = learners("import numpy as np\n\ndef double(x):\n    return "
                      "np.random.default_rng(0).choice(2, p=[x, 0])", tmp_path=tmp_path)
    outcome = run_check(doubles, [broken], 1)
    assert "raised at line 4: return np.random" in outcome.found


@pytest.mark.parametrize("line, says", [
    ("return totl + x", "name 'totl' is not defined"),
    ("return x >> np.float32(2)", "rshift(int64, float32)"),
    ("return x.nothing", "Unknown attribute 'nothing'")])
def test_what_numba_cannot_compile_is_shown_at_the_learners_line(tmp_path, line, says):
    numba = pytest.importorskip("numba")
    double = learners(f"import numpy as np\n\ndef double(x):\n    {line}\n",
                      tmp_path=tmp_path)
    outcome = run_check(doubles, [numba.njit(double)], 1)
    assert outcome.status is Status.RAISED and says in outcome.found
    assert f"line 4: {line}" in outcome.found and "py_func" in outcome.hint
    assert "candidate" not in outcome.found and "nopython" not in outcome.found


@pytest.mark.parametrize("exercise, subject",
                         [("arithmetic.double", lambda x: None),
                          ("layers.rms_norm", lambda x, weight, eps: None),
                          ("accounting.parameter_count", lambda shape: None),
                          ("accounting.forward_flops", lambda *a, **b: None),
                          ("pipeline.run_request", lambda prompt, **black_boxes: None)])
def test_a_forgotten_return_is_said_to_be_one(exercise, subject):
    checks = ([doubles] if exercise == "arithmetic.double"
              else [check for check in checks_of(exercise) if check.public])
    outcomes = [outcome for outcome in run_checks(checks, [subject], 1)
                if outcome.status is not Status.PASSED]
    assert ({outcome.found for outcome in outcomes}
            == {"that your function returned nothing; is there a `return`?"})


def test_the_tolerance_that_decides_is_said():
    for atol, expected, says in ((1e-5, 2, "within 1e-05"), (2e-45, 2, "one part in 100,000"),
                                 (0, 2, "one part in 100,000")):
        with pytest.raises(CheckFailure) as caught:
            expect_close(np.float32([9]), np.float32([expected]), atol=atol)
        assert says in caught.value.expected


def test_a_misspelt_name_is_said_to_be_one(tmp_path):
    outcome = run_check(doubles,
                        [learners("def double(x):\n    return 2 * y\n", tmp_path=tmp_path)], 1)
    assert (outcome.error == "NameError" and "spelled" in outcome.hint
            and "return 2 * y" in outcome.found)


def test_a_black_box_says_what_it_was_given():
    def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens,
                    on_token=None):
        new = encode(prompt)
        while True:
            new = choose(forward(new))
    _, outcome, *_ = run_exercise("pipeline.run_request", [run_request]).outcomes
    assert outcome.status is Status.FAILED
    assert ("`forward` was given" in outcome.found
            and outcome.found.endswith("not a list of ids"))


def test_a_wrong_signature_is_the_learners_error():
    outcome = run_check(doubles, [lambda: 1], 1)
    assert (outcome.status, outcome.error) == (Status.RAISED, "TypeError")
    assert "takes 0 positional arguments" in outcome.found and "signature" in outcome.hint


@pytest.mark.parametrize("wrap", [False, True])
def test_a_stub_is_not_attempted_even_when_a_library_wraps_its_error(wrap):
    def stub(x):
        try:
            raise NotImplementedError("arithmetic.double: write this function")
        except NotImplementedError as error:
            if not wrap:
                raise
            raise RuntimeError("compilation failed") from error
    outcome = run_check(doubles, [stub], 1)
    assert (outcome.status, outcome.earned) == (Status.NOT_ATTEMPTED, 0)


def test_another_exercise_that_is_not_written_is_named():
    def double(x):
        raise NotImplementedError("arithmetic.add: write this function")
    assert "arithmetic.add" in run_check(doubles, [double], 1).found


def overflow(x):
    return overflow(x)


@pytest.mark.parametrize("subject, error",
                         [(lambda x: sys.exit(), "SystemExit"), (overflow, "RecursionError"),
                          (lambda x: (_ for _ in ()).throw(GeneratorExit), "GeneratorExit")])
def test_whatever_is_raised_ends_as_an_outcome(subject, error):
    assert run_check(doubles, [subject], 1).error == error


def test_an_interrupt_interrupts():
    def interrupted(x):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        run_check(doubles, [interrupted], 1)


def endless(x):
    while True:
        try:
            x = -x
        except Exception:
            pass


def test_an_endless_loop_is_stopped_and_the_other_checks_keep_their_points():
    @check("arithmetic.double", points=2, public=True)
    def stops(double, rng):
        """Small numbers."""
        double(1)

    outcome = run_check(stops, [endless], 1, seconds=0.2)
    assert outcome.status is Status.OUT_OF_TIME
    after = run_checks([doubles], [lambda x: 2 * x], 1)
    assert after[0].status is Status.PASSED


def test_checks_after_one_that_was_out_of_time_get_less_of_it(monkeypatch):
    monkeypatch.setattr(grading, "CHECK_SECONDS", 0.4567)
    monkeypatch.setattr(grading, "SHORTER_SECONDS", 0.1)
    outcomes = run_checks([doubles] * 3, [endless], 1)
    assert ([outcome.found for outcome in outcomes]
            == [f"no end after {seconds} seconds of computing" for seconds in (0.46, 0.1, 0.1)])


def test_an_endless_generator_is_stopped():
    @check("arithmetic.numbers", points=2, public=True)
    def first_numbers(numbers, rng):
        """All numbers."""
        expect_equal(sum(1 for _ in numbers()), 3)

    def numbers():
        while True:
            yield 1
    assert run_check(first_numbers, [numbers], 1, seconds=0.2).status is Status.OUT_OF_TIME


def test_a_limit_wakes_code_that_sleeps_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr("autograder.processes.limits.WALL_PER_CPU", 1)
    if hasattr(__import__("signal"), "pthread_kill"):
        with pytest.raises(TimeLimit), time_limit(0.1):
            threading.Event().wait(60)
    for _ in range(50):
        with time_limit(5):
            pass
    time.sleep(0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "time-limit"]


def test_functions_can_be_watched_after_a_limit():
    """A profiler or debugger goes on working, whether the limit was reached or not;
    once it made the process hang."""
    code = ("import sys\nfrom autograder.processes.limits import TimeLimit, time_limit\nfor "
            "limit, count in ((5, 1), (0.1, 10 ** 12)):\n    try:\n        with "
            "time_limit(limit):\n            for _ in range(count):\n                pass\n    "
            "except TimeLimit:\n        print('reached')\n    seen = []\n    "
            "sys.setprofile(lambda frame, event, value: seen.append(event))\n    (lambda: "
            "None)()\n    sys.setprofile(None)\n    print('call' in seen)\n")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8",
                         timeout=60)
    assert ran.stdout.split() == ["True", "reached", "True"]


def test_warnings_and_stderr_become_remarks(tmp_path, capsys):
    source = ("import sys, warnings\nimport numpy as np\ndef rms_norm(x, weight, eps):\n    "
              "warnings.warn('mind the gap')\n    print('loud', file=sys.stderr)\n    "
              "print('hello')\n    root = np.sqrt((x * x).mean(-1, keepdims=True) + "
              "np.float32(eps))\n    return x / root * weight\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run_exercise("layers.rms_norm", [learners(source, "rms_norm", tmp_path)])
    assert report.score == 10
    assert report.remarks == ("UserWarning: mind the gap", "written to stderr: loud")
    out, err = capsys.readouterr()
    assert "hello" in out and err == ""


def test_public_checks_alone_count_for_the_whole_exercise():
    report = run_exercise("layers.rms_norm", [rms_norm])
    assert all(outcome.public for outcome in report.outcomes)
    assert (report.score, report.total) == (10, 10) and type(report.score) is float
    everything = run_exercise("layers.rms_norm", [rms_norm], public=None)
    assert len(everything.outcomes) == len(checks_of("layers.rms_norm"))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=3000), st.text(max_size=3000), st.text(max_size=3000))
def test_no_message_is_too_long(expected, found, hint):
    @check("arithmetic.double", points=1, public=True)
    def talks(double, rng):
        """Talk."""
        raise CheckFailure(expected.replace("a", " "), found.replace("b", " "),
                           hint.replace("c", " "))
    outcome = run_check(talks, [abs], 1)
    assert (len(f"{outcome.expected} {outcome.found} {outcome.hint}".split())
            <= MESSAGE_WORDS + 3)


def test_exercises_are_found_with_their_checks_and_names():
    assert "layers.rms_norm" in exercises()
    assert sum(each.points for each in checks_of("layers.rms_norm")) == 10
    with pytest.raises(LookupError):
        checks_of("layers.nothing")
    with pytest.raises(LookupError):
        checks_of("nothing.at_all")
    assert names_of("kernels.cpu.pack+unpack") == ["pack", "unpack"]
    assert (components_of("kernels.cpu.pack+unpack")
            == ["kernels.cpu.pack", "kernels.cpu.unpack"])


def test_the_first_difference_is_named():
    got, expected = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    got[1, 2] = 0.5
    with pytest.raises(CheckFailure) as failure:
        expect_close(got, expected, axes=["query", "head"])
    assert ("1 of 6 elements differ; first: query 1, head 2: got 0.5, expected 0"
            in failure.value.found)
    for wrong in (got[0], got.astype(np.float64), got.tolist(), None):
        with pytest.raises(CheckFailure):
            expect_close(wrong, expected)
    with pytest.raises(CheckFailure, match=r"\[1, 3, 3\]. Found \[1, 2, 3\]"):
        expect_equal([1, 2, 3], [1, 3, 3])
    with pytest.raises(CheckFailure):
        expect_equal(True, 1)


def test_changes_in_place_are_seen_however_deep():
    values = {"rows": [np.array([1.0, np.nan])], "names": ["a"]}
    with expect_unchanged(values):
        pass
    with pytest.raises(CheckFailure, match="in place"), expect_unchanged(values):
        values["rows"][0][0] = 2


MODULES = [module.name for module in pkgutil.walk_packages(autograder.__path__, "autograder.")
           if not module.name.startswith(("autograder.tests", "autograder.accept"))
           and not module.name.endswith(("__main__", "nbgrader_config"))]


def texts_in(module: str) -> Iterator[str]:
    """The texts that a module writes, other than its docstrings."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
             for part in ast.walk(node) if part is not node}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…"
                          for part in node.values)


@pytest.mark.parametrize("module", [name for name in MODULES
                                    if name.startswith("autograder.checks.")])
def test_no_hint_is_so_long_that_its_end_is_cut_off(module):
    assert [text for text in texts_in(module) if len(text.split()) > grading.HINT_WORDS] == []


def test_strings_are_compared_as_strings_and_short_values_are_shown_as_a_whole():
    def message(got, right) -> str:
        with pytest.raises(CheckFailure) as failure:
            expect_equal(got, right, hint="Count.")
        return f"{failure.value.expected} | {failure.value.found} | {failure.value.hint}"
    assert message("n", "ÿ") == "the result to be 'ÿ' | 'n' | Count."
    assert message([3, 20], (3, 10)) == "the result to be [3, 10] | [3, 20] | Count."
    assert "character 70 is the first that differs: got 'b'" in message(
        "a" * 70 + "b" * 60, "a" * 130)
    assert "to have 130 characters" in message("a" * 120, "a" * 130)
    assert message([None], ["stop"]) == "the result to be ['stop'] | [None] | Count."
    assert "at 'end' to be 'stop'" in message({"end": None}, {"end": "stop"})
    assert "type" in message((i for i in range(3)), 3) and "Count" not in message([], 3)


def test_what_is_rounded_on_the_way_is_nearly_right():
    right = np.linspace(-3, 5, 40, dtype=np.float32)

    def hint(got) -> str:
        with pytest.raises(CheckFailure) as failure:
            expect_close(got, right, hint="Count.")
        return failure.value.hint
    one = right.copy()
    one[3] *= np.float32(1.001)
    assert hint(right.astype(np.float16).astype(np.float32)).startswith("Nearly right.")
    assert hint(right * np.float32(1.01)) == hint(one) == "Count."
    assert hint(np.where(right > 0, np.nan, right)).startswith("Where is the first nan?")


def test_of_an_error_of_the_engine_the_message_says_what_and_why():
    error = ModelError("cannot quantize this matrix", "48 numbers are nan", "look at the file")
    assert error_text(error) == "cannot quantize this matrix: 48 numbers are nan"


def test_an_expected_error_must_come_and_a_stub_is_no_error():
    with expect_error(ValueError, when="asked"):
        raise ValueError
    with pytest.raises(CheckFailure,
                       match="no name in it"), expect_error(ValueError, when="asked"):
        raise CheckFailure("the error to name the tensor", "no name in it")
    with pytest.raises(CheckFailure,
                       match="no error at all"), expect_error(ValueError, when="asked"):
        pass
    with pytest.raises(CheckFailure) as failure, expect_error(ValueError, when="asked"):
        raise TypeError("f() missing 2 required positional arguments: 'why' and 'hint'")
    assert (failure.value.found
            == "TypeError: f() missing 2 required positional arguments: 'why' and 'hint'")
    with pytest.raises(NotImplementedError), expect_error(RuntimeError, when="asked"):
        raise NotImplementedError


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_the_examples_in_docstrings_are_found():
    found = [test for module in MODULES
             for test in doctest.DocTestFinder().find(importlib.import_module(module))]
    assert sum(bool(test.examples) for test in found) > 10


def test_a_subject_that_exits_fails_a_check_that_draws_its_inputs():
    """hypothesis takes these two for its own, and would go on as if nothing had happened."""
    from autograder.checking.differential import expect_on_all

    for kind in (SystemExit, GeneratorExit):
        def exits(case, kind=kind):
            raise kind
        with pytest.raises(kind):
            expect_on_all(st.integers(), exits, np.random.default_rng(1))
