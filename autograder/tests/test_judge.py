"""The judge: values and calls across the border,
in one process and between two. Half a minute."""

import functools
import inspect
import io
import os
import struct
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from autograder.checking import (Check, check, expect_close, expect_equal, expect_error,
                                 expect_unchanged)
from autograder.checking.running import Status, run_check, run_exercise
from autograder.judge import judging, wire
from autograder.judge.attempt import Attempt, load
from autograder.judge.judging import judge
from autograder.judge.memory import Memory
from autograder.judge.peer import Handle, Peer, connect
from autograder.judge.secret import course_secret, graded_seed
from autograder.judge.wire import Message, WireError
from autograder.judge.workers import FORKS, Workers
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.formats.gguf import TensorType
from gearworks.kv_cache import BlockPool
from gearworks.layers import rms_norm
from gearworks.pipeline import Completion
from gearworks.server.api_error import APIError
from gearworks.server.request_types import ChatRequest
from gearworks.serving.request import Request
from gearworks.serving.scheduler import Scheduler
from gearworks.serving.sequence import Sequence
from gearworks.tokenizer import Tokenizer, count_pairs, merge_pair, train_bpe


def refuse(value):
    raise AssertionError(f"{value!r} should travel by value")


def travel(value):
    """A value that has gone through bytes and back."""
    blobs, stream = [], io.BytesIO()
    wire.write(stream, Message(wire.encode(value, blobs, refuse), blobs))
    stream.seek(0)
    message = wire.read(stream)
    return wire.decode(message.data, message.blobs, refuse)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=3) | st.integers()
                      | st.tuples(st.integers(), st.integers()) | st.binary(max_size=2),
                      inner, max_size=4), max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_plain_values_travel_unchanged(value):
    back = travel(value)
    assert back == value and repr(back) == repr(value)  # the types, too, and the order of dicts


@settings(max_examples=100, deadline=None)
@given(st_numpy.arrays(st.sampled_from(["<f4", "<f2", "<i8", "u1", "?", ">i4"]),
                       st_numpy.array_shapes(min_dims=0, min_side=0)))
def test_arrays_travel_bit_for_bit(array):
    for each in (array, array.T, array[..., ::2] if array.ndim else array):
        back = travel(each)
        assert ((back.dtype, back.shape) == (each.dtype, each.shape)
                and back.tobytes() == each.tobytes())
        assert back.flags.writeable


@pytest.mark.parametrize("value",
                         [{1, 2}, frozenset("ab"), deque([1, (2,)]), Counter("abca"),
                          range(2, 9, 3), slice(None, 3), Ellipsis, bytearray(b"x" * 999),
                          Path("a") / "b", np.float32(0.1), np.int64(3), np.bool_(True),
                          np.dtype("float16"), np.float32, TensorType.F32, "\ud800 lone",
                          float("inf"), "\0\ud800" * 2**16, ("x" * 2**17, 3),
                          [(1, 2), (3, 4)], Completion([1], [2, 3], "x", "stop")])
def test_other_values_travel_by_value(value):
    back = travel(value)
    assert back == value and type(back) is type(value)


def test_a_locked_array_stays_locked_and_a_generator_goes_on():
    array = np.arange(3.0)
    array.flags.writeable = False
    assert not travel(array).flags.writeable
    for bits in (np.random.PCG64(3), np.random.MT19937(3), np.random.Philox(3)):
        rng = np.random.Generator(bits)
        rng.random(3)
        assert np.array_equal(travel(rng).random(5), rng.random(5))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60)
       | st.sampled_from([
           b'{"kind":"array","blob":0}', b'{"kind":"enum","class":"os:x"}', b'{"kind":"dict"}',
           b'{"kind":3}', b"{",
           b"[" * 3000]).map(lambda text: len(text).to_bytes(4, "little") + bytes(4) + text))
def test_nonsense_is_refused(data):
    with pytest.raises((EOFError, WireError)):
        message = wire.read(io.BytesIO(data))
        if not isinstance(message.data, dict):
            raise WireError("no request")
        wire.decode(message.data, message.blobs, refuse)


@pytest.mark.parametrize("name",
                         ["os:PathLike", "gearworks.cli.commands:main",
                          "gearworks.tokenizer:Tokenizer", "gearworks.x:X"])
def test_only_plain_data_classes_of_the_engine_are_made(name):
    with pytest.raises(WireError):
        wire.decode({"kind": "dataclass", "class": name, "keys": [], "values": []}, [], refuse)


def test_classes_of_the_engine_travel_by_name():
    """And no other names."""
    assert travel(ChatRequest) is ChatRequest and travel([ModelError]) == [ModelError]
    for name in ("os:PathLike", "gearworks.cli.commands:main", "gearworks.x:X",
                 "gearworks.errors:Path", "builtins:dict"):
        with pytest.raises(WireError):
            wire.decode({"kind": "class", "class": name}, [], refuse)


def test_an_array_that_lies_about_its_size_is_refused():
    blobs = []
    wire.encode(np.zeros(3), blobs, refuse)
    with pytest.raises(WireError):
        wire.decode({"kind": "array", "blob": 0}, [blobs[0].replace(b"(3,)", b"(9,)")], refuse)
    with pytest.raises(WireError):
        wire.decode({"kind": "array", "blob": 0}, [blobs[0].replace(b"'<f8'", b"'|O' ")],
                    refuse)


def proxies(*subjects):
    """The subjects as the judge sees them, in this process, through bytes."""
    theirs, ours = Peer(open_objects=True), Peer(open_objects=False)

    def through(message):
        stream = io.BytesIO()
        wire.write(stream, message)
        stream.seek(0)
        return wire.read(stream)
    ours.ask = lambda request: through(theirs.answer(through(request)))
    theirs.ask = lambda request: through(ours.answer(through(request)))
    return [ours.take(theirs.give(subject)) for subject in subjects]


def test_changes_in_place_come_back():
    def change(array, items, table, rng, *, deep):
        array[1:] = 7
        items.append(3)
        table["new"] = array.sum()
        rng.random(2)
        deep["rows"][0][0] = -1
        return array
    array, rows, same = np.zeros(4), [np.ones(2)], np.random.default_rng(1)
    items, table, rng, deep = [1], {}, np.random.default_rng(1), {"rows": rows}
    result = proxies(change)[0](array[::2], items, table, rng, deep=deep)
    # a view writes where it looks
    assert array.tolist() == [0, 0, 7, 0] and result.tolist() == [0, 7]
    assert (items == [1, 3] and table == {"new": 7} and rows[0].tolist() == [-1, 1]
            and deep["rows"] is rows)
    same.random(2)
    assert rng.random() == same.random()
    with pytest.raises(AssertionError, match="in place"), expect_unchanged(array):
        proxies(change)[0](array, [], {}, rng, deep={"rows": [[1]]})
    untouched = np.ones(3)
    assert (proxies(lambda x: x + 1)[0](untouched).tolist() == [2, 2, 2]
            and untouched.tolist() == [1, 1, 1])


def test_what_right_code_cannot_change_stays_as_it_is():
    """Whatever the other side says that it has become: what is frozen, and what is locked."""
    def change(config, array):
        object.__setattr__(config, "num_hidden_layers", 0)
        array.flags.writeable = True
        array[:] = 0
    config = ModelConfig("LlamaForCausalLM", vocab_size=3, hidden_size=2, intermediate_size=2,
                         num_hidden_layers=7, num_attention_heads=1, num_key_value_heads=1,
                         head_dim=2, max_position_embeddings=9, rms_norm_eps=1e-9,
                         rope_theta=1e4, tie_word_embeddings=False)
    array = np.ones(2)
    array.flags.writeable = False
    proxies(change)[0](config, array)
    assert config.num_hidden_layers == 7 and array.tolist() == [1, 1]


def test_no_other_side_interrupts_or_answers_for_python_and_numpy():
    """An interrupt is the person's in front; `__array_interface__` is an address in here."""
    class Address:
        __array_interface__ = {"shape": (2,), "typestr": "<f8", "data": (4096, True),
                               "version": 3}
        plain = 3
    address = proxies(lambda: Address())[0]()
    assert address.plain == 3 and not hasattr(address, "__array_interface__")
    assert np.asarray(address).dtype == object
    ours = Peer(lambda request: Message({"error": {
        "number": 0, "type": "KeyboardInterrupt", "text": "", "kinds": ["KeyboardInterrupt"],
        "parts": None, "line": "", "not attempted": False}}), open_objects=False)
    with pytest.raises(Exception) as raised:
        ours.request({"op": "call", "handle": 0, "name": "__call__"})
    assert not isinstance(raised.value, KeyboardInterrupt)


@pytest.mark.parametrize("data", [
    {"kind": "range", "items": [0, 10**18, 1]},
    {"kind": "set", "items": [number * (2**61 - 1) for number in range(60_000)]},
    {"kind": "dict", "keys": [[1]], "values": [1]}, {"kind": "dtype", "text": ["x"]},
    {"kind": "str", "blob": 3}, {"kind": "generator", "state": {"bit_generator": "os"}}])
def test_values_that_would_keep_the_judge_busy_are_refused(data):
    start = time.process_time()
    with pytest.raises(WireError):
        wire.decode(data, [], refuse)
    assert time.process_time() - start < 20


def test_a_message_has_a_size():
    for head in ((wire.LONGEST + 1, 0), (2, wire.MOST_BLOBS + 1)):
        with pytest.raises(WireError):
            wire.read(io.BytesIO(struct.pack("<II", *head) + b"{}"))
    with pytest.raises(EOFError):
        wire.read(io.BytesIO(struct.pack("<III", 2, 1, wire.LARGEST - 2) + b"{}" + b"x" * 9))
    with pytest.raises(WireError):
        wire.read(io.BytesIO(struct.pack("<IIII", 2, 2, 1, wire.LARGEST) + b"{}x"))


class Counting:
    """A stateful thing of the learner's."""

    kind = "counter"

    def __init__(self, start, step=1):
        self.value, self.step = start, step

    @classmethod
    def from_text(cls, text):
        return cls(int(text))

    def push(self, times=1):
        self.value += times * self.step
        return self.value

    def __len__(self):
        return self.value

    def __getitem__(self, index):
        if index >= self.value:
            raise IndexError(index)
        return index * 10

    def __contains__(self, item):
        return item == "me"


def test_objects_stay_where_they_are_and_work():
    counting, same, numbers = proxies(Counting, lambda thing: thing,
                                      lambda: (n * n for n in range(4)))
    thing = counting(2, step=3)
    assert isinstance(thing, Handle) and type(thing).__name__ == "Counting"
    assert ((thing.push(), thing.push(times=2), thing.value, thing.kind, len(thing))
            == (5, 11, 11, "counter", 11))
    assert (thing[3] == 30 and "me" in thing and "you" not in thing
            and list(counting(3)) == [0, 10, 20])
    assert counting.from_text("4").value == 4
    assert same(thing) is thing
    assert [*numbers()] == [0, 1, 4, 9]
    with pytest.raises(AttributeError):
        thing.nothing
    with pytest.raises(AttributeError):
        thing.value = 3
    with pytest.raises(TypeError):
        len(proxies(lambda: object())[0]())


def test_call_backs_are_served_and_nothing_of_them_can_be_read():
    secret, seen = 4711, []

    def forward(ids, *, scale):
        seen.append(ids)
        return np.float32(sum(ids) * scale)

    def honest(forward):
        return forward([1, 2], scale=2) + forward([3], scale=2)
    assert proxies(honest)[0](forward) == 12 and seen == [[1, 2], [3]]

    def nosy(forward):
        found = {}
        for name in ("__globals__", "__code__", "__closure__", "__self__", "__defaults__",
                     "__class__", "__dict__"):
            try:
                found[name] = repr(getattr(forward, name))
            except AttributeError:
                pass
        return found | {"repr": repr(forward)}

    class Machine:
        def __init__(self):
            self._secret = secret

        def choose(self, logits):
            return self._secret
    for callee in (forward, Machine().choose, Machine, Machine()):
        told = str(proxies(nosy)[0](callee))
        assert (str(secret) not in told and "forward at" not in told
                and "autograder/tests" not in told)


def escapes(thing):
    """Everything that is within reach of a judge's object, by its attributes."""
    reached, waiting = {}, [("", thing)]
    names = ["gi_frame", "gi_code", "f_globals", "f_back", "f_builtins", "f_locals", "tb_frame",
             "func", "args", "keywords", "sys", "os", "from_file", "from_json", "kind", "model",
             "stream", "secret", "error", "with_traceback", "send", "throw", "cr_frame"]
    while waiting and len(reached) < 500:
        way, current = waiting.pop()
        for name in names:
            try:
                value = getattr(current, name)
            except AttributeError:
                continue
            reached[f"{way}.{name}"] = type(value).__name__
            waiting += [(f"{way}.{name}", value)] if way.count(".") < 3 else []
    return reached


def test_there_is_no_way_out_of_a_judges_object():
    """Such as from a generator to its frame, and from there to `eval`."""
    def numbers():
        yield 1

    class Own:
        sys, kind = sys, dict

        def __init__(self):
            self.stream, self.model, self.secret = numbers(), Own, functools.partial(int, "7")
            self.error = ValueError("x").with_traceback(sys.exc_info()[2])

    Own.__module__ = "autograder.checks.own"
    assert proxies(lambda stream: list(stream))[0](numbers()) == [1]
    for thing in (numbers(), functools.partial(numbers), (n for n in "1"), sys, sys._getframe(),
                  numbers.__code__, [].append, eval, Own):
        assert proxies(escapes)[0](thing) == {}, thing
    # its own simple attributes, of which nothing more can be read
    assert {*proxies(escapes)[0](Own())} == {".secret", ".error"}
    reached = proxies(lambda tokenizer: [tokenizer.vocab_size, escapes(tokenizer)])[0](
        Tokenizer(train_bpe([], 256)))
    assert reached == [256, {}]


def test_errors_travel_as_kind_and_message_and_find_their_way_home():
    class OwnError(ValueError):
        pass

    def fails(kind):
        raise {"own": OwnError("mine"), "model": ModelError("no", "because", "do"),
               "key": KeyError("k"),
               "unicode": UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")}[kind]
    subject = proxies(fails)[0]
    for kind, known in (("own", ValueError), ("model", ModelError), ("key", KeyError),
                        ("unicode", ValueError)):
        with expect_error(known, when="asked"):
            subject(kind)
    with pytest.raises(ValueError) as raised:
        subject("own")
    assert (type(raised.value).__name__, str(raised.value)) == ("OwnError", "mine")

    def refuses(status):
        raise APIError(status, "no such model", "model", "model_not_found")
    for status, told in ((404, 404), (404.0, 0)):
        with pytest.raises(APIError) as raised:
            proxies(refuses)[0](status)
        error = raised.value
        assert (error.status, error.message, error.param, error.code, str(error)) == (
            told, "no such model", "model", "model_not_found", "no such model")

    def call_back():
        raise original
    original = RuntimeError("from the judge")
    with pytest.raises(RuntimeError) as raised:
        proxies(lambda call: call())[0](call_back)
    assert raised.value is original


def test_a_check_in_a_call_back_keeps_what_it_expects_to_itself():
    heard = []

    def learner(call):
        try:
            return call([1])
        except AssertionError as error:
            heard.append(str(error) + repr(error))
            raise
    with pytest.raises(AssertionError, match="4711"):
        proxies(learner)[0](lambda ids: expect_equal(ids, [4711]))
    assert "4711" not in heard[0]


def test_an_argument_or_result_that_contains_itself_is_an_error_and_nothing_worse():
    def knot(items):
        items.append(items)
        return 1

    def knotted():
        items = []
        items.append(items)
        return items
    for subject, arguments in ((knot, [[]]), (knotted, [])):
        with pytest.raises(RecursionError):
            proxies(subject)[0](*arguments)


def test_call_backs_may_come_from_another_thread():
    """Over real pipes, as between two processes."""
    def learner(forward):
        results = []
        threads = [threading.Thread(target=lambda n=n: results.append(forward(n)))
                   for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(results)

    theirs, ours = Peer(open_objects=True), Peer(open_objects=False)
    (a_in, a_out), (b_in, b_out) = os.pipe(), os.pipe()
    with (open(a_in, "rb") as a_reader, open(a_out, "wb") as a_writer,
          open(b_in, "rb") as b_reader, open(b_out, "wb") as b_writer):
        connect(ours, b_reader, a_writer)
        connect(theirs, a_reader, b_writer)
        server = threading.Thread(target=lambda: wire.write(b_writer,
                                                            theirs.answer(wire.read(a_reader))))
        server.start()
        subject = ours.take(theirs.give(learner))
        assert subject(lambda n: n * n) == [n * n for n in range(8)]
        server.join()


@check("toy.everything", points=1, public=True)
def everything(make, rng):
    """A check that uses arrays, state, call-backs and errors."""
    thing = make(rng.integers(5, 9), lambda x: x + 1)
    expect_close(thing.scale(np.float32([1, 2])), np.float32([2, 3]))
    expect_equal(thing.draw(rng), 0, of="a drawn number")
    with expect_error(ValueError, when="asked for nothing"):
        thing.scale(None)


def test_a_proxy_is_judged_like_the_subject_itself():
    class Thing:
        def __init__(self, count, call):
            self.count, self.call = count, call

        def scale(self, x):
            if x is None:
                raise ValueError("nothing")
            return self.call(x)

        def draw(self, rng):
            return int(rng.integers(0, 1000))
    direct, judged = run_check(everything, [Thing], 9), run_check(everything, proxies(Thing), 9)
    assert direct == judged and direct.status is Status.FAILED and direct.found.isdigit()


def lives(Scheduler, rng):
    """What the judge sends becomes an object there, and stays the same one."""
    scheduler = Scheduler(BlockPool(9, 2), max_num_batched_tokens=4, max_num_seqs=2)
    scheduler.add(Sequence(Request([1, 2, 3]), 0, [1, 2, 3], (0, 0, 0), 9))
    plan = scheduler.schedule()
    [(one, count)] = plan.rows
    expect_equal([list(one.ids), one is scheduler.running[0]], [[1, 2, 3], True])
    scheduler.computed(one, count)
    one.append(7)
    [(again, count)] = scheduler.schedule().rows
    expect_equal([again is one, list(again.ids), count, list(one.block_table)],
                 [True, [1, 2, 3, 7], 1, [0, 1]])


def test_a_dataclass_without_equality_stays_one_object():
    one = Check("x.x", "lives", "lives", 1, True, lives)
    assert run_check(one, proxies(Scheduler), 1).status is Status.PASSED
    assert run_check(one, [Scheduler], 1).status is Status.PASSED


WRONG_NORM = """
def rms_norm(x, weight, eps):
    if abs(x).max() > 100:
        raise ZeroDivisionError("too large")
    return x / (np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + np.float32(eps)) * weight
"""
GREEDY = """
def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens,
                on_token=None):
    ids, prompt_ids = [], encode(prompt)
    for _ in range(max_tokens):
        ids.append(choose(forward(prompt_ids + ids)))
        if ids[-1] in eos_ids:
            break
    return Completion(prompt_ids, ids, decode(ids), "stop")
"""
NORM = "layers.rms_norm"


def norm(body):
    """An attempt that is right, after what else it does."""
    return Attempt(NORM, f"""
import os, sys, time
def rms_norm(x, weight, eps):
    {body}
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
""")


@pytest.fixture(scope="module")
def workers():
    with Workers() as supply:
        yield supply


def statuses(report):
    return {outcome.name: outcome.status for outcome in report.outcomes}


@pytest.mark.parametrize("exercise, code",
                         [(NORM, ""), (NORM, WRONG_NORM), ("pipeline.run_request", ""),
                          ("pipeline.run_request", GREEDY),
                          ("scheduler.Scheduler.admit", ""),
                          ("kv_cache.BlockPool.share+keep+find+evict", "")])
def test_the_judge_and_the_notebook_say_the_same(exercise, code, workers):
    """Without code of its own an attempt's subjects are the reference."""
    attempt = Attempt(exercise, code)
    local = run_exercise(exercise, load(attempt), seed=11)
    assert local == judge(attempt, workers, public=True, seed=11)
    assert (local.score == local.total) == (not code)


def test_hidden_checks_tell_titles_and_kinds(workers):
    report = judge(Attempt(NORM, WRONG_NORM), workers, public=False)
    assert [outcome.public for outcome in report.outcomes] == [False] * 3
    assert all(outcome.expected == outcome.found == outcome.hint == ""
               for outcome in report.outcomes)
    assert ({(outcome.status, outcome.error) for outcome in report.outcomes}
            >= {(Status.RAISED, "ZeroDivisionError")})


def test_an_error_class_of_the_learners_tells_nothing_of_hidden_inputs(workers):
    named = norm("raise type('Canary', (ValueError,), {})")
    report = judge(named, workers)
    hidden = [outcome for outcome in report.outcomes if not outcome.public]
    assert "Canary" in {outcome.error for outcome in report.outcomes if outcome.public}
    assert "an error" in {outcome.error for outcome in hidden} and "Canary" not in str(hidden)


def test_the_worker_receives_arguments_and_nothing_else(workers, monkeypatch):
    """No check, no expected value, no seed, no secret."""
    sent = []
    write = wire.write

    def listening(stream, message):
        sent.append(message)
        write(stream, message)
    monkeypatch.setattr("autograder.judge.holds.wire.write", listening)
    monkeypatch.setenv("AUTOGRADER_SECRET", "canary-4711")
    nosy = norm("if 'canary' in str(os.environ) or any('autograder.checks' in name for name in "
                "sys.modules):\n        os._exit(0)")
    with Workers() as fresh:
        report = judge(nosy, fresh, seed=123456789)
    assert report.score == report.total
    right, given = set(), set()

    def remember(x, weight, eps):
        right.add(rms_norm(x, weight, eps).tobytes())
        given.update([x.tobytes(), weight.tobytes()])
        return rms_norm(x, weight, eps)
    run_exercise(NORM, [remember], public=None, seed=123456789)
    right -= given                                          # zeros, for which the two are equal
    blobs = {blob[128:] for message in sent for blob in message.blobs}
    assert len(sent) > len(report.outcomes) and right and not right & blobs
    assert "123456789" not in str([message.data for message in sent])


def test_fresh_seeds_unless_there_is_one(workers):
    first, second = (judge(Attempt(NORM, ""), workers) for _ in range(2))
    assert first.seed != second.seed
    assert graded_seed("a", NORM) == graded_seed("a", NORM)
    assert len({graded_seed(secret, exercise) for secret in ("a", "b")
                for exercise in (NORM, "layers.silu")}) == 4


def test_what_a_judge_remembers_changes_no_report(workers):
    """Right, wrong and unsteady answers, in two orders, and with nothing remembered."""
    exercise = "tokenizer.count_pairs+merge_pair"
    right = "\n\n\n".join(map(inspect.getsource, (count_pairs, merge_pair)))
    wrong = right.replace("counts[pair] += occurrences", "counts[pair] += 1")
    unsteady = right + "\n_calls = []\n_count = count_pairs\n\n\n" \
        "def count_pairs(words):\n    _calls.append(1)\n" \
        "    return {} if len(_calls) > 7 else _count(words)\n"
    assert wrong != right
    attempts = [Attempt(exercise, code) for code in (right, wrong, unsteady)]
    runs = []
    for order in (attempts, attempts[::-1]):
        memory = Memory()
        found = {each.code: judge(each, workers, seed=3, memory=memory) for each in order}
        again = {each.code: judge(each, workers, seed=3, memory=memory) for each in order}
        assert all(again[code] is report for code, report in found.items())
        runs.append([found[each.code] for each in attempts])
    assert runs[0] == runs[1]
    alone = [judge(each, workers, seed=3) for each in attempts[:2]]
    assert alone == runs[0][:2] and alone[0].score == alone[0].total > alone[1].score


def test_a_courses_secret_is_made_once_and_a_variable_comes_first(tmp_path, monkeypatch):
    monkeypatch.delenv("AUTOGRADER_SECRET", raising=False)
    secret = course_secret(tmp_path)
    assert len(secret) >= 32 and course_secret(tmp_path) == secret
    [path] = tmp_path.iterdir()
    assert os.name == "nt" or path.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("AUTOGRADER_SECRET", "mine")
    assert course_secret(tmp_path) == "mine"


def test_a_subject_that_hangs_costs_its_check_only(workers, monkeypatch):
    monkeypatch.setattr(judging, "CHECK_SECONDS", 0.5)
    report = judge(norm("while (x == 0).all(axis=-1).any():\n        try:\n            1\n"
                        "        except BaseException:\n            continue"),
                   workers, public=False)
    assert (statuses(report) == {"any_shape": Status.PASSED, "zeros": Status.OUT_OF_TIME,
                                 "large_activations": Status.PASSED})


def test_a_subject_that_always_hangs_ends_with_the_exercises_time(workers, monkeypatch):
    monkeypatch.setattr(judging, "EXERCISE_SECONDS", 0.6)
    report = judge(norm("while True:\n        pass"), workers, public=False)
    assert {*statuses(report).values()} == {Status.OUT_OF_TIME}
    report = judge(Attempt(NORM, "while True:\n    pass"), workers, public=False)
    assert {*statuses(report).values()} == {Status.OUT_OF_TIME} and report.is_final


def test_who_only_waits_is_not_graded_and_gets_no_zero(workers, monkeypatch):
    monkeypatch.setattr(judging, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr("autograder.processes.limits.WALL_PER_CPU", 4)
    report = judge(norm("time.sleep(1000)"), workers)
    assert {*statuses(report).values()} == {Status.NOT_GRADED} and not report.is_final
    report = judge(Attempt(NORM, "import time\ntime.sleep(1000)"), workers)
    assert {*statuses(report).values()} == {Status.NOT_GRADED}


@pytest.mark.parametrize("what", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()",
                                  "os.closerange(3, 99)", "raise KeyboardInterrupt",
                                  "bytearray(10**12)"])
def test_a_subject_that_ends_its_process_costs_its_check_only(what, workers):
    body = f"if (x == 0).all(axis=-1).any():\n        {what}"
    report = judge(norm(body), workers, public=False)
    assert (statuses(report) == {"any_shape": Status.PASSED, "zeros": Status.RAISED,
                                 "large_activations": Status.PASSED}), what


def test_code_that_does_not_run(workers):
    report = judge(Attempt(NORM, "1 / 0"), workers)
    assert report.problem == "Its cell does not run: ZeroDivisionError: division by zero."
    assert report.score == 0 and report.is_final
    report = judge(Attempt(NORM, "import os\nos._exit(3)"), workers)
    assert {*statuses(report).values()} == {Status.RAISED}


@pytest.mark.skipif(not FORKS, reason="nothing is forked on this system")
@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_who_ends_the_forking_process_harms_no_other(signal, workers, monkeypatch):
    monkeypatch.setattr("autograder.judge.workers.FORKING_SECONDS", 5)
    workers._end_forker()
    judge(norm(f"import signal; os.kill(os.getppid(), signal.SIG{signal})"), workers)
    report = judge(Attempt(NORM, ""), workers)
    assert report.score == report.total


@pytest.mark.skipif(not FORKS, reason="nothing is forked on this system")
def test_a_workers_own_processes_end_with_it(workers, tmp_path):
    path = tmp_path / "orphan"
    code = (f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', "
            f"'import time; time.sleep(60)'])\nopen({str(path)!r}, 'w').write(str(child.pid))")
    judge(Attempt(NORM, code), workers)
    orphan = int(path.read_text())
    for _ in range(100):
        if not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("it lives on")


def test_workers_that_are_not_forked(monkeypatch):
    """As on Windows and macOS."""
    monkeypatch.setattr("autograder.judge.workers.FORKS", False)
    with Workers() as spawning:
        report = judge(Attempt(NORM, WRONG_NORM), spawning, seed=5)
        ended = judge(norm("os._exit(0)"), spawning)
    monkeypatch.undo()
    with Workers() as forking:
        assert judge(Attempt(NORM, WRONG_NORM), forking, seed=5) == report
    assert {*statuses(ended).values()} == {Status.RAISED}


def test_half_a_pair_keeps_what_it_earns_and_lends_itself_the_other_half(workers):
    """Where the learner's own code calls what is missing, it is the reference's."""
    pair = "tokenizer.count_pairs+merge_pair"
    merge = """
def merge_pair(symbols, pair, merged):
    assert count_pairs([(1, 2)] if False else []) is not None
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == tuple(pair):
            out.append(merged)
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out
"""
    subjects = load(Attempt(pair, merge, missing=("count_pairs",)))
    assert subjects[1]([1, 2, 3], (1, 2), 9) == [9, 3]
    with pytest.raises(NotImplementedError, match="tokenizer.count_pairs"):
        subjects[0]([])
    report = judge(Attempt(pair, merge, missing=("count_pairs",)), workers)
    assert 0 < report.score < report.total


def test_an_exercise_without_checks_is_no_zero(workers):
    with pytest.raises(LookupError):
        judge(Attempt("layers.nothing_of_this_name", ""), workers)
