"""Mutants made by machine: each operator, what is mutated, trials, and the committed matrix.

A minute and a half of processor time, most of it for mutants that are tried again.
"""

import ast
import itertools
import random
import sys
import tempfile
import textwrap
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from autograder.checking import check
from autograder.checking.levels import why_not_here
from autograder.judge.wire import Message
from autograder.machine_mutants import results, runs
from autograder.machine_mutants.comparison import Records, compare, exactly
from autograder.machine_mutants.equivalents import equivalents
from autograder.machine_mutants.mutants import (MachineMutant, applied, canonical, load,
                                                mutants_in, mutants_of)
from autograder.machine_mutants.operators import OPERATORS
from autograder.machine_mutants.trials import OUT_OF_TIME, Bench, Outcome, Worker, in_order
from autograder.machine_mutants.widening import wide_calls
from autograder.processes.fork import CAN_FORK, end_after, in_a_copy
from autograder.reference.source import ModuleSource, module_source
from gearworks import layers

REPOSITORY = Path(__file__).parents[2]
SAMPLE = {"exercises": 12, "mutants": 5}
RENEW = runs.COMMAND

# operator -> a function and some of the changes that it must make; each by its changed line
CASES = {
    "boundary": ("return x < y", ["return x <= y"]),
    "comparison": ("return x in y", ["return x not in y"]),
    "and-or": ("return x and y", ["return x or y"]),
    "condition-dropped": ("return x and y and z", ["return x and z", "return y and z"]),
    "not-dropped": ("return not x", ["return x"]),
    "none-by-truth": ("return 1 if x is not None else y", ["return 1 if x else y"]),
    "branch": ("return x if y else z", ["return x", "return z"]),
    "filter-dropped": ("return [a for a in x if a]", ["return [a for a in x]"]),
    "validation-dropped": ("if x:\n    raise ValueError('no')\nreturn y", ["pass"]),
    "arithmetic": ("return x + y", ["return x - y"]),
    "operand-dropped": ("return x + y", ["return x", "return y"]),
    "operands-swapped": ("return x - y", ["return y - x"]),
    "sign-dropped": ("return -x", ["return x"]),
    "off-by-one": ("return [a for a in range(x)]",
                   ["return [a for a in range(x - 1)]", "return [a for a in range(1, x)]"]),
    "slice-end": ("return x[1:y]", ["return x[:y]", "return x[1:]", "return x[1:y - 1]"]),
    "constant": ("return f(x, True, 0.5)",
                 ["return f(x, False, 0.5)", "return f(x, True, 1.0)"]),
    "min-max": ("return np.argmax(x)", ["return np.argmin(x)"]),
    "statement-dropped": ("x = f(x)\nreturn x", ["pass"]),
    "jump": ("for a in x:\n    break\nreturn y", ["pass", "continue"]),
    "handler": ("try:\n    x()\nexcept (OSError, KeyError):\n    pass",
                ["except (OSError,):", "except (KeyError,):"]),
    "call-dropped": ("return np.exp(x)", ["return x"]),
    "copy-dropped": ("return x.copy()", ["return x"]),
    "cast-dropped": ("return x.astype(y)", ["return x"]),
    "keyword-dropped": ("return f(x, key=y)", ["return f(x)"]),
    "default-dropped": ("return x.get(y, z)", ["return x.get(y)"]),
    "arguments-swapped": ("return f(x, y)", ["return f(y, x)"]),
    "string": ("return x.decode('utf-8')", ["return x.decode('latin-1')"]),
    "string-method": ("return x.strip()", ["return x.lstrip()", "return x.rstrip()"]),
    "container-method": ("return x.append(y)", ["return x.insert(0, y)"]),
    "axis": ("return f(x, axis=-1)", ["return f(x, axis=0)"]),
    "dtype": ("return x.astype(np.float32)", ["return x.astype(np.float16)"]),
    "axes-transposed": ("return x @ y.T", ["return x @ y"]),
    "wrong-size": ("H, K = x\nreturn y // K", ["return y // H"]),
    "wrong-root": ("H, d = x\nreturn y / np.sqrt(d)", ["return y / np.sqrt(d * H)"]),
    "precision": ("return np.exp(x)", ["return np.float16(np.exp(x)).astype(np.float32)"]),
    "finite-mask": ("return -np.inf", ["return -10000.0"]),
    "in-place": ("return a + x", ["return np.add(a, x, out=a)"]),
    "generator": ("return rng.random()", ["return np.random.default_rng(0).random()"]),
    "one-draw": ("for b in x:\n    f(rng.random())", ["drawn = rng.random()"]),
}


def toy(body: str) -> ModuleSource:
    """A module with one function that has this body."""
    head = ("import numpy as np\n\n\ndef f(a: np.ndarray, x, y=None, z=None, rng=None):\n"
            '    """Says `x < 1`."""\n')
    return ModuleSource("toy", head + textwrap.indent(body, "    ") + "\n")


def made(body: str, operator: str | None = None) -> list[MachineMutant]:
    """The mutants of that function."""
    module = toy(body)
    return mutants_in(module, module.bodies("f"),
                      [each for each in OPERATORS if operator in (None, each.name)])


def test_every_operator_has_a_case_here():
    assert CASES.keys() == {operator.name for operator in OPERATORS}
    assert len(OPERATORS) == len({operator.says for operator in OPERATORS})


@pytest.mark.parametrize("operator", CASES)
def test_an_operator_makes_its_changes_and_no_other_does(operator):
    body, wanted = CASES[operator]
    lines = [{line[1:].strip() for line in mutant.diff.splitlines() if line[0] == "+"}
             for mutant in made(body, operator)]
    for line in wanted:
        assert any(line in added for added in lines), (line, lines)


def test_what_is_given_to_the_learner_stays_as_it_is():
    body = ("if x < 1:\n    raise ValueError(f'at least {1 + 1}, not {x + 1}')\n"
            "n: np.float32 = x\ndef inner(k: int = 3):\n    \"\"\"Not 4 > 3.\"\"\"\n"
            "    return k\nreturn inner(n)")
    for mutant in made(body):
        tree = ast.parse(applied(toy(body).text, mutant))
        assert not any(isinstance(node, ast.Raise) and "1 + 1" not in ast.unparse(node)
                       for node in ast.walk(tree)), mutant.diff
        assert "n: np.float32" in ast.unparse(tree) and "Not 4 > 3" in ast.unparse(tree)
    assert {mutant.component for mutant in made("return x")} <= {"toy.f"}


def test_no_mutant_is_the_reference_or_another_one_or_no_python():
    body = "for a in x:\n    if a > 0 and y:\n        break\nreturn max(0, *x[1:]) or -1"
    found = made(body)
    assert len(found) == len({mutant.key for mutant in found}) > 20
    source = toy(body).text
    codes = [canonical(ast.parse(applied(source, mutant))) for mutant in found]
    assert len({canonical(ast.parse(source)), *codes}) == len(codes) + 1


def test_a_key_belongs_to_the_code_and_not_to_its_layout():
    plain = {mutant.key for mutant in made("return x + y")}
    assert plain == {mutant.key for mutant in made("# a comment\nreturn (x +\n        y)")}
    assert not plain & {mutant.key for mutant in made("return x + z")}


def test_code_is_the_same_text_in_every_version_of_python():
    assert canonical(ast.parse("def f(a, *, b=None): return -1")) == (
        "Module(body=[FunctionDef(name=f,args=arguments(args=[arg(arg=a)],"
        "kwonlyargs=[arg(arg=b)],kw_defaults=[Constant(None)]),"
        "body=[Return(value=UnaryOp(op=USub(),operand=Constant(1)))])])")


def test_only_the_lines_of_a_change_are_replaced():
    text = module_source("layers").text.splitlines(keepends=True)
    mutant = next(each for each in mutants_of("layers.rms_norm")
                  if each.operator == "call-dropped" and "sqrt" in each.diff.splitlines()[0])
    assert "np.sqrt" in text[mutant.first - 1] and mutant.first == mutant.last
    [norm] = load("layers.rms_norm", mutant)
    assert norm is not layers.rms_norm and norm.__globals__["softmax"] is layers.softmax


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def key_of(exercise: str, operator: str, added: str) -> str:
    return next(mutant.key for mutant in mutants_of(exercise)
                if mutant.operator == operator and added in mutant.diff)


def test_a_mutant_is_caught_by_the_first_check_that_fails_public_ones_first(worker):
    key = key_of("layers.rms_norm", "call-dropped", "+ normed = x / (mean_square")
    assert [*worker.outcomes("layers.rms_norm", (), [key])] == [Outcome(
        in_order("layers.rms_norm")[0].name, "failed")]


def test_a_mutant_that_never_ends_is_caught_and_the_next_one_is_tried(worker):
    exercise = "tokenizer.count_pairs+merge_pair"
    endless = [mutant for mutant in mutants_of(exercise)
               if mutant.operator == "statement-dropped" and "+= " in mutant.diff]
    outcomes = [*worker.outcomes(exercise, (), [mutant.key for mutant in endless])]
    assert OUT_OF_TIME in {outcome.how for outcome in outcomes}
    assert all(outcome.check for outcome in outcomes)


@pytest.mark.skipif(not CAN_FORK, reason="processes cannot be copied here")
def test_a_copy_spoils_nothing_and_ends_when_its_time_is_over():
    kept = [1]
    assert in_a_copy(kept.clear) and kept == [1]
    assert not in_a_copy(lambda: sys.exit(3))

    def endless() -> None:
        end_after(0.2, 30)
        sum(itertools.repeat(0))                                  # nothing inside can stop it
    assert not in_a_copy(endless)


def test_a_comparison_tells_bits_from_types_and_rounding():
    def record(value):
        return [Message({"value": value})]
    assert exactly(record([1, 0.5]), record([1, 0.5]))
    assert not exactly(record([1]), record([True]))
    assert not exactly(record([0.0]), record([-0.0]))
    pair = {"kind": "tuple", "items": [1, 2]}
    assert not exactly(record(pair), record([1, 2]))
    assert exactly(record(pair), record([1, 2]), of_values=True)
    told = {"kinds": ["ValueError"], "text": "no", "line": "1"}
    assert exactly(record(told), record(told | {"text": "yes"}))


def test_a_bench_has_the_mutants_and_the_seconds_of_an_exercise():
    bench = Bench("layers.rms_norm", ())
    names = {check.name for check in bench.checks}
    assert len(bench.mutants) > 10 and bench.seconds.keys() == names
    assert [check.public for check in bench.checks] == sorted(
        (check.public for check in bench.checks), reverse=True)


def test_a_mutant_that_is_caught_with_another_seed_is_said_to_be(worker):
    key = key_of("layers.rms_norm", "call-dropped", "+ normed = x / (mean_square")
    [found] = worker.comparisons("layers.rms_norm", (), [key])
    assert found.found == "caught"


@pytest.mark.parametrize("other, found", [
    (lambda x: x * 1.0 if x > 0 else 0.0, "same"), (lambda x: max(0, x) * 1.0 or 1.0, "wider"),
    (lambda x: np.float64(max(0, x)), "types"), (lambda x: max(0, x) * (1 + 1e-9), "rounds"),
    (lambda x: max(0, x) + (x == 7) * 1.0, "differs"), (lambda x: -1.0, "caught")])
def test_a_survivor_is_compared_with_the_reference(other, found):
    """It meets what the check draws, which is from 1 to 6, or 7, and varied from there."""
    @check("toy.positive", points=1, public=True)
    def grows(positive, rng):
        "What is above 0 stays."
        assert positive(int(rng.integers(1, 7))) > 0 and positive(7)

    records = Records([grows], [lambda x: max(0, x) * 1.0])
    records.fill()
    assert compare(records, [other], {"grows": 1}).found == found


def test_a_decision_that_rounding_makes_is_no_other_one_for_who_only_rounds_otherwise():
    """Whether a third, three times, is below 1 depends on the precision."""
    def below(x: np.ndarray) -> bool:
        return bool((x / np.float32(3) * np.float32(3) < x).any())

    def exact(x: np.ndarray) -> bool:
        return bool((x.astype(np.float64) / 3 * 3 < x).any())

    @check("toy.below", points=1, public=True)
    def asks(below, rng):
        "It answers."
        below(rng.standard_normal(3).astype(np.float32))
    records = Records([asks], [below])
    records.wide = [(call, call.result([below])) for call in wide_calls([asks], [below], 2)]
    records._seeds = 1
    assert compare(records, [exact], {"asks": 1}).found == "wider"
    assert compare(records, [exact], {"asks": 1}, rounds=True).found == "rounds"
    assert compare(records, [lambda x: True], {"asks": 1}, rounds=True).found == "wider"


class Till:
    """Takes money in, and gives no more than it has."""

    def __init__(self, money: int):
        self.money, self.closed = money, False

    def give(self, money: int) -> int:
        given = min(money, self.money)
        self.money -= given
        return given if not self.closed else 0

    def close(self) -> None:
        self.closed = True


class ForgetsWhatIsGone(Till):
    def give(self, money: int) -> int:
        return min(money, self.money) if not self.closed else 0


class GivesOnceMore(Till):
    def close(self) -> None:
        self.closed = self.closed or self.money > 0


@pytest.mark.parametrize("other, found", [
    (type("Same", (Till,), {}), "same"), (ForgetsWhatIsGone, "wider"),
    (GivesOnceMore, "same")])
def test_objects_are_compared_by_scripts_that_are_wider(other, found):
    """The check gives once; twice, or more than there is, is what a script may vary it to."""
    @check("toy.Till", points=1, public=True)
    def gives(till, rng):
        "What is asked for."
        one = till(8)
        assert one.give(int(rng.integers(5, 8))) > 0
        one.close()

    records = Records([gives], [Till])
    records.fill()
    assert len(records.wide) > 5
    assert compare(records, [other], {"gives": 1}).found == found


def test_none_is_tried_where_a_signature_has_it():
    def calls(function):
        @check("toy.f", points=1, public=True)
        def runs(f, rng):
            "It runs."
            f(3)
        return [call.args for call in wide_calls([runs], [function], 2)]

    def plain(x: int) -> str:
        return str(x)

    def optional(x: int | None) -> str:
        return str(x)
    assert (None,) in calls(optional) and (None,) not in calls(plain) and (0,) in calls(plain)


def test_chance_and_names_of_the_system_tell_nothing_apart():
    @check("toy.name", points=1, public=True)
    def named(name, rng):
        "A folder's name, and an id."
        with tempfile.TemporaryDirectory() as folder:
            assert name(folder)

    def name(folder):
        return f"{folder}/{uuid.uuid4().hex}/{time.time()}"
    records = Records([named], [name])
    records.fill()
    assert compare(records, [lambda folder: name(folder)], {"named": 1}).found == "same"


# --- the committed matrix ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def exercises():
    return runs.exercises_of(REPOSITORY)


@pytest.fixture(scope="module")
def rows():
    return results.read(REPOSITORY / results.PATH)


def test_the_matrix_is_of_this_code_and_these_checks(exercises, rows):
    assert not runs.stale(exercises, rows), f"run {RENEW}"
    assert rows.keys() == {exercise.name for exercise in exercises}
    assert not [row.problem for row in rows.values() if row.problem]


def test_every_equivalent_mutant_is_one_that_survives(rows):
    survivors = {survivor.key for row in rows.values() for survivor in row.survivors}
    stale = [each.key for key, each in equivalents().items() if key not in survivors]
    assert stale == [], "these entries of equivalent.toml fit no survivor: the code was edited"


def test_a_sample_of_mutants_ends_as_the_matrix_says(exercises, rows, worker):
    rng = random.Random(0)
    known = [each for each in exercises if each.name in rows and not why_not_here(each.name)]
    for exercise in rng.sample(known, min(len(known), SAMPLE["exercises"])):
        row = rows[exercise.name]
        mutants = mutants_of(exercise.name, exercise.methods)
        places = rng.sample(range(len(mutants)), min(len(mutants), SAMPLE["mutants"]))
        keys = [mutants[at].key for at in places]
        outcomes = [*worker.outcomes(exercise.name, exercise.methods, keys)]
        for at, outcome in zip(places, outcomes, strict=True):
            assert row.letter(outcome) == row.outcomes[at], (exercise.name, mutants[at].diff,
                                                             RENEW)
