"""Drawn inputs, the search for the smallest, and the docstrings' examples. Twenty seconds."""

import os
import random
import time

import numpy as np
import pytest
from hypothesis import find
from hypothesis import strategies as st

from autograder.checking import (MESSAGE_WORDS, CheckFailure, check, checks_of, exercises,
                                 expect_same)
from autograder.checking import differential
from autograder.checking.differential import Raised, called, expect_agreement
from autograder.checking.examples import NAME, examples_of
from autograder.checking.levels import why_not_here
from autograder.checking.running import Status, run_check
from autograder.generators.arrays import LAYOUTS, MASKED, VALUES, Numbers, rows
from autograder.generators.calls import Call, Script, calls, typed
from autograder.generators.files import ODD, Parts, with_fault
from autograder.generators.ids import IDS, words
from autograder.generators.seeds import Generator
from autograder.generators.texts import LEAD_BYTES, streams, texts
from autograder.judge.diagnosis import record
from autograder.processes.limits import TimeLimit, time_limit
from autograder.variants.mutation import reference_subjects
from gearworks.tokenizer import merge_pair
from gearworks.vocabularies.vocabulary import AddedToken


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def total(numbers: list[int]) -> int:
    return sum(numbers)


LISTS = calls(st.lists(st.sampled_from(IDS), max_size=8))


# --- the search


def message(subject, reference=total, cases=LISTS, seed: int = 1, **options) -> CheckFailure:
    with pytest.raises(CheckFailure) as failure:
        expect_agreement(subject, reference, cases, rng(seed), **options)
    return failure.value


@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_difference_is_told_as_it_is_typed(seed):
    failure = message(lambda numbers: sum(set(numbers)), seed=seed, hint="Every one counts.")
    assert failure.expected == "`total([1, 1])` to be 2"
    assert failure.found == "1" and failure.hint == "Every one counts."


def test_right_code_passes_and_only_in_the_tolerance():
    expect_agreement(total, total, LISTS, rng())
    cases = rows().map(lambda x: Call((x,)))

    def double(x):
        return x * np.float32(2)
    expect_agreement(lambda x: x + x, double, cases, rng())
    assert "float64" in message(lambda x: 2 * x.astype(float), double, cases).found
    assert "elements differ" in message(lambda x: (x * np.float32(2.001)), double, cases).found


def test_a_change_in_place_is_found():
    def total_and_empty(numbers):
        result = sum(numbers)
        numbers.clear()
        return result
    assert (message(total_and_empty).expected
            == "argument 1, after the call, of `total([1])` to be [1]")


def test_errors_must_be_of_the_same_kind():
    def refuse(numbers):
        if 0 in numbers:
            raise ValueError("no zeros")
        return sum(numbers)

    def refuse_otherwise(numbers):
        if 0 in numbers:
            raise KeyError("no zeros")
        return sum(numbers)

    class Zeros(ValueError):
        pass

    def refuse_more_precisely(numbers):
        if 0 in numbers:
            raise Zeros
        return sum(numbers)
    expect_agreement(refuse_more_precisely, refuse, LISTS, rng())
    assert message(total, refuse).expected == "`refuse([0])` to raise ValueError"
    assert message(refuse_otherwise, refuse).found.startswith("KeyError: 'no zeros', raised at")
    failure = message(refuse)
    assert failure.expected == "`total([0])` to give 0"
    assert "ValueError: no zeros" in failure.found


def test_scripts_of_calls_are_compared_step_by_step():
    class Counter:
        def __init__(self, start):
            self.count = start

        def add(self, number):
            self.count += number
            return self.count

    class Forgetful(Counter):
        def add(self, number):
            self.count = max(self.count, 0)
            return super().add(number)

    step = st.builds(lambda number: ("add", Call((number,))), st.integers(-2, 2))
    cases = st.builds(lambda steps: Script(Call((0,)), tuple(steps)),
                      st.lists(step, max_size=5))
    failure = message(Forgetful, Counter, cases)
    assert failure.expected.startswith(
        "step 2, `add(0)`, of `c = Counter(0); c.add(-1); c.add(0)`")
    expect_agreement(Counter, Counter, cases, rng())


def test_a_search_is_the_same_for_the_same_seed_and_whatever_is_loaded():
    def seen(seed):
        inputs = []
        expect_agreement(lambda numbers: inputs.append([*numbers]) or sum(numbers), total,
                         LISTS, rng(seed))
        return inputs
    assert seen(3) == seen(3) != seen(4)


def test_a_search_leaves_no_trace(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hypothesis.configuration.__hypothesis_home_directory",
                        tmp_path / "home")
    states = random.getstate(), np.random.get_state()[1].tolist()
    message(lambda numbers: max(numbers, default=0))
    expect_agreement(total, total, LISTS, rng())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert os.listdir(tmp_path) == [] and capfd.readouterr() == ("", "")


def test_a_search_has_a_budget(monkeypatch):
    tried = []

    def slow(numbers):
        tried.append(numbers)
        time.sleep(0.001)
        return -1
    monkeypatch.setattr(differential, "SHRINK_CALLS", 7)
    message(slow, lambda numbers: len(numbers))
    assert len(tried) <= 1 + 7 + 1

    def burning(numbers):
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return -1
    monkeypatch.setattr(differential, "SHRINK_SECONDS", 0.2)
    start = time.process_time()
    message(burning, lambda numbers: len(numbers))
    assert time.process_time() - start < 2


def test_a_search_may_end_with_the_first_difference():
    tried = []

    def wrong(numbers):
        tried.append(numbers)
        return -1
    with differential.first_difference_only():
        message(wrong)
    assert len(tried) == 1
    message(wrong)
    assert len(tried) > 2


def test_a_search_may_go_on_with_all_that_it_would_draw_and_still_fails():
    """So whoever watches sees what wrong code makes of the same inputs as right code."""
    def watched(subject):
        tried = []

        def noted(numbers):
            tried.append([*numbers])
            return subject(numbers)
        return noted, tried
    (right, met), (wrong, met_too) = watched(total), watched(lambda numbers: -1)
    with differential.searches(differential.Search.ALL):
        expect_agreement(right, total, LISTS, rng())
        assert message(wrong).found == "-1"
    assert met == met_too and len(met) > 20


def test_limits_interrupts_and_unwritten_functions_pass_through():
    def endless(numbers):
        while True:
            pass

    def interrupted(numbers):
        raise KeyboardInterrupt

    def unwritten(numbers):
        raise NotImplementedError("toy.total: write this function")
    with pytest.raises(TimeLimit), time_limit(0.2):
        expect_agreement(endless, total, LISTS, rng())
    with pytest.raises(KeyboardInterrupt):
        expect_agreement(interrupted, total, LISTS, rng())
    with pytest.raises(NotImplementedError):
        expect_agreement(unwritten, total, LISTS, rng())


def test_a_function_that_changes_its_mind_is_found_too():
    calls_made = []

    def moody(numbers):
        calls_made.append(numbers)
        return sum(numbers) + (len(calls_made) == 9)
    assert message(moody).expected.startswith("`total(")


def test_messages_stay_short_whatever_is_drawn():
    @check("toy.total", points=1, public=True)
    def drawn(subject, rng):
        """Many numbers."""
        cases = calls(st.lists(st.integers(10**9, 10**10), min_size=200, max_size=200))
        expect_agreement(subject, total, cases, rng, examples=5, hint="Add. " * 50)
    outcome = run_check(drawn, [lambda numbers: 0], 1)
    words_in = len(f"{outcome.expected} {outcome.found} {outcome.hint}".split())
    assert outcome.status is Status.FAILED and words_in <= MESSAGE_WORDS + 3
    assert outcome.expected.startswith("`total([1000000000,")


def test_the_judge_sees_the_same_through_its_border():
    """By value and by handle: results, errors, and changes in place come back."""
    right = next(each for each in checks_of("tokenizer.count_pairs+merge_pair")
                 if each.name == "ids_of_several_digits")
    subjects = reference_subjects("tokenizer.count_pairs+merge_pair")
    assert record(right, subjects, 1)

    def into_the_list(symbols, pair, merged):
        after = merge_pair(symbols, pair, merged)
        symbols[:] = after
        return after
    for subject in (into_the_list, merge_pair):
        here = run_check(right, [subjects[0], subject], 5)
        from autograder.judge.peer import Peer
        theirs, ours = Peer(open_objects=True), Peer(open_objects=False)
        ours.ask, theirs.ask = theirs.answer, ours.answer
        proxies = [ours.take(theirs.give(each)) for each in (subjects[0], subject)]
        there = run_check(right, proxies, 5)
        assert (here.status, here.expected, here.found) == (there.status, there.expected,
                                                            there.found)
    assert here.status is Status.PASSED


# --- what counts as the same


@pytest.mark.parametrize("got, expected", [
    ((1, 2), [1, 2]), (np.int64(3), 3), (1.0000001, 1.0), ({"a": np.float32(2)}, {"a": 2.0}),
    ([AddedToken("a", 1)], [AddedToken("a", 1)]), (None, None), ("a", "a"),
    (np.array([1, 2], np.int32), np.array([1, 2])),
    (np.array([np.nan, 1e6 + 0.1], np.float32), np.array([np.nan, 1e6], np.float32))])
def test_what_is_the_same(got, expected):
    expect_same(got, expected, of="it")


@pytest.mark.parametrize("got, expected, found", [
    ("ab", "ac", "'ab'"), (b"a", "a", "b'a'"), ([1, 3], [1, 2], "[1, 3]"),
    (True, 1, "a bool"),
    (None, [1], "nothing"), ({"a": 1}, {"b": 1}, "['a']"), (0, None, "0"),
    ([1.0, "b"], [1.0, "a"], "'b'"), (AddedToken("a", 2), AddedToken("a", 1), "2"),
    (np.array([1.0]), np.array([1]), "float64"), ([1], np.array([1.0], np.float32), "a list"),
    (np.array([1.0]), np.array([1.0], np.float32), "float64"),
    (np.array([True]), np.array([1]), "bool")])
def test_what_differs(got, expected, found):
    with pytest.raises(CheckFailure) as failure:
        expect_same(got, expected, of="it")
    assert found in failure.value.found


# --- what is drawn


def test_every_lead_byte_of_utf8_is_drawn():
    leads = {character.encode()[0] for character in LEAD_BYTES}
    assert leads == {*range(0xC2, 0xF5)}


@pytest.mark.parametrize("wanted", ["\ufeff", "’", "\r\n", "\u0301", "<|im_end|>", "x" * 300,
                                    ""])
def test_texts_hold_what_breaks_programs(wanted):
    assert find(texts(), lambda text: (wanted in text) if wanted else not text) == wanted


def test_streams_hold_halves_and_nonsense():
    for end in (b"\xe0", b"\xf0", b"\xff", b"\x80"):
        assert find(streams(), lambda data: data.endswith(end)).endswith(end)


def test_ids_have_several_digits_and_repeat():
    assert find(words(), lambda ids: ids[:1] == [11] and 1 in ids) == [11, 1]
    assert find(words(), lambda ids: len(ids) > len(set(ids))) == [1, 1]


@pytest.mark.parametrize("values", [*VALUES, *MASKED])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_as_they_are_typed(values, layout):
    for shape in ((2, 3), (4, 5), (), (0, 3)):
        numbers = Numbers(shape, 7, values, layout)
        array = numbers.made()
        assert array.shape == shape and array.dtype == np.float32
        text = numbers.typed().removesuffix(" (read-only)")
        again = eval(text, {"np": np})
        assert np.array_equal(again, array)
    array = Numbers((2, 3), 7, values, layout).made()
    assert array.flags.writeable == (layout != "locked")
    assert array.flags.c_contiguous == (layout in ("rows", "locked"))


def test_generators_draw_the_least_and_the_most():
    assert Generator(next="least").made().random() == 0.0
    assert Generator(next="most").made().random() == 1 - 2**-53
    assert Generator(5).made().random() == np.random.default_rng(5).random()


def test_files_have_one_fault():
    document = {"a": {"b": [1, 2]}, "c": "text"}
    for odd in ODD:
        found = find(with_fault(document), lambda broken: broken.get("a", {}) != document["a"]
                     and isinstance(broken.get("a"), dict) and "b" in broken["a"]
                     and repr(odd) in repr(broken["a"]))
        assert found != document
    assert find(with_fault(document), lambda broken: "c" not in broken)
    assert bytes(Parts((b"ab", 3)).made()) == b"ab\0\0\0"
    assert Parts((b"ab", 3), True).typed() == "memoryview(b'ab' + bytes(3))"


def test_every_call_gets_arguments_of_its_own():
    call = Call(([1, [2]],), {"x": Numbers((2,))})
    args, kwargs = call.made()
    args[0][1].append(3)
    kwargs["x"][0] = 9
    assert call.made()[0] == [[1, [2]]] and call.made()[1]["x"][0] != 9
    seen = dict(called(lambda a, x: a.pop(), call))
    assert seen[""] == [2] and seen["argument 1, after the call, of"] == [1]
    assert isinstance(dict(called(lambda: 1, call))[""], Raised)


@pytest.mark.parametrize("value, text", [
    (AddedToken("a", 1, special=True), "AddedToken('a', 1, special=True)"), ((1,), "(1,)"),
    ({"a": [b"x"]}, "{'a': [b'x']}"), (np.float32(0.1), "np.float32(0.1)"), ({2, 1}, "{1, 2}"),
    (np.array([-np.inf], np.float32), "np.array([-np.inf], np.float32)")])
def test_values_are_typed_as_python(value, text):
    assert typed(value) == text


# --- the examples in docstrings


@pytest.mark.parametrize("exercise", exercises())
def test_an_exercise_begins_with_its_docstrings_example(exercise):
    first = checks_of(exercise)[0]
    assert (first.name, first.public) == (NAME, True)
    lines = [line for example in examples_of(exercise).values() for line in example]
    assert any(line.want for line in lines)
    for line in lines:                                  # what is printed would not be compared
        assert not line.want or line.exc_msg or compile(line.source.strip(), "", "eval")
        assert "print(" not in line.source
    if not why_not_here(exercise):
        assert run_check(first, reference_subjects(exercise), 1).status is Status.PASSED


def test_an_example_is_run_with_what_was_written():
    example = checks_of("tokenizer.count_pairs+merge_pair")[0]
    count_pairs, merge_pair = reference_subjects("tokenizer.count_pairs+merge_pair")
    wrong = run_check(example, [count_pairs, lambda *call: merge_pair(*call)[::-1]], 1)
    assert wrong.expected == "`merge_pair([1, 1, 1, 5, 1, 1], (1, 1), 9)` to be [9, 1, 5, 9]"
    assert wrong.found == "[9, 5, 1, 9]"
    tuples = run_check(example, [count_pairs, lambda *call: tuple(merge_pair(*call))], 1)
    assert tuples.status is Status.PASSED


def test_an_example_may_end_in_an_error():
    example = checks_of("weights.load_checkpoint")[0]
    silent = run_check(example, [lambda path: None], 1)
    assert silent.expected.endswith("to raise NotAvailableError")


@pytest.mark.parametrize("exercise", [name for name in exercises() if name.endswith("_test")])
def test_a_test_that_tests_nothing_earns_nothing(exercise):
    outcomes = [run_check(each, [lambda *arguments: None], 1) for each in checks_of(exercise)]
    assert sum(outcome.earned for outcome in outcomes) == 0
