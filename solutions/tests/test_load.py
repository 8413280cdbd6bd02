"""`gearworks load` against a real server on this machine, whose every move a test decides, and
its arithmetic on times that are known."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics as plain
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from gearworks import accounting
from gearworks.cli import commands as cli
from gearworks.errors import GearworksError, NotAvailableError, UsageError
from gearworks.load import plan, report, statistics
from gearworks.load.arrivals import arrivals
from gearworks.load.client import Client, base_url, is_own_machine
from gearworks.load.events import EventParser
from gearworks.load.measurement import Measurement, Stopwatch
from gearworks.load.prompts import Lengths, Prefixes, requests, text
from gearworks.load.run import Planned, Run, as_trace
from gearworks.load.trace import TraceRequest, find_trace, read_trace, write_trace
from gearworks.load.traces import chat
from gearworks.serving.record import Row, StepRecord

TIMES = st.floats(0, 1000, allow_nan=False)


# --- When, and how much -----------------------------------------------------------------------

def gaps(burstiness: float, seed: int = 3) -> np.ndarray:
    times = arrivals(5.0, burstiness, Random(seed))
    return np.diff([next(times) for _ in range(20_001)])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_spread(burstiness):
    found = gaps(burstiness)
    assert found.mean() == pytest.approx(0.2, rel=0.05) and found.min() >= 0
    assert found.std() / found.mean() == pytest.approx(burstiness ** -0.5, rel=0.05)
    assert (found == gaps(burstiness)).all() and (found != gaps(burstiness, seed=4)).any()


def test_arrivals_are_a_poisson_process_by_default():
    """Of exponential gaps a share of 1/e is longer than their mean."""
    assert (gaps(1.0) > 0.2).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_lengths_are_lognormal_up_to_the_longest():
    random, lengths = Random(1), Lengths(100, 0.5, 300)
    found = np.array([lengths.draw(random) for _ in range(20_000)])
    assert np.median(found) == pytest.approx(100, rel=0.03)
    assert np.percentile(found, 84.13) == pytest.approx(100 * np.exp(0.5), rel=0.04)
    assert found.max() == 300 and (found == 300).mean() == pytest.approx(0.014, abs=0.004)
    assert min(Lengths(1, 5.0).draw(random) for _ in range(100)) == 1


def test_lengths_from_moments_have_them():
    random, lengths = Random(1), Lengths.from_moments(70, 90, most=10 ** 9)
    found = np.array([lengths.draw(random) for _ in range(200_000)])
    assert found.mean() == pytest.approx(70, rel=0.02)
    assert found.std() == pytest.approx(90, rel=0.1)


def test_shared_prefixes_have_their_share_and_their_documents():
    made = list(requests(iter([0.0] * 4000), Lengths(10), Lengths(5), Prefixes(0.25, 64, 3),
                         Random(0)))
    shared = [each for each in made if each.group is not None]
    assert len(shared) / len(made) == pytest.approx(0.25, abs=0.03)
    assert {each.group for each in shared} == {"0", "1", "2"}
    assert {(each.prefix_tokens, each.prompt_tokens) for each in shared} == {(64, 74)}
    assert {each.prompt_tokens for each in made if each.group is None} == {10}


def test_prompts_share_their_prefix_and_nothing_else():
    def words(number, group="a", prefix=20, length=30, seed=0):
        return text(TraceRequest(0, 1, length, group=group, prefix_tokens=prefix), seed,
                    number).split()
    assert words(0) == words(0) and len(words(0)) == 30
    assert words(0)[:20] == words(1)[:20] and words(0)[20:] != words(1)[20:]
    assert words(0)[:20] == words(1, prefix=25)[:20]    # a conversation goes on from its prefix
    assert words(0)[:3] != words(0, group="b")[:3] and words(0)[:3] != words(0, seed=1)[:3]
    assert words(5, prefix=0)[:3] != words(6, prefix=0)[:3]
    assert text(TraceRequest(0, 1, prompt="As it is\n"), 0, 0) == "As it is\n"


def test_a_word_is_a_token(smollm2):
    for length in (1, 17, 500):
        prompt = text(TraceRequest(0, 1, length), seed=2, number=0)
        assert len(smollm2.tokenizer.encode(prompt)) == length


# --- Traces -----------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@st.composite
def trace_requests(draw):
    arrival, answer = round(draw(TIMES), 6), draw(st.integers(1, 1000))
    group = draw(st.none() | NAMES)
    if draw(st.booleans()):
        return TraceRequest(arrival, answer, prompt=draw(NAMES), group=group)
    length = draw(st.integers(1, 1000))
    prefix = 0 if group is None else draw(st.integers(0, length))
    return TraceRequest(arrival, answer, length, None, group, prefix)


@settings(deadline=None)
@given(made=st.lists(trace_requests(), min_size=1))
def test_a_trace_that_was_written_is_read_again(tmp_path_factory, made):
    path = tmp_path_factory.getbasetemp() / "trace.jsonl"
    write_trace(path, made)
    assert read_trace(path) == sorted(made, key=lambda each: each.arrival)


GOOD = '{"arrival": 1, "output_tokens": 2, "prompt_tokens": 3}'


@pytest.mark.parametrize("line, says", [
    ("{", "not JSON"), ("[]", "no JSON object"), (b"\xff", "not UTF-8"),
    ("[" * 99_999, "not JSON"),
    ('{"output_tokens": 2, "prompt_tokens": 3}', "arrival is None"),
    (GOOD.replace("1", "-1"), "arrival is -1"), (GOOD.replace("1", "NaN"), "is nan"),
    (GOOD.replace("1", "true"), "arrival is True"),
    (GOOD.replace("1", "9" * 400), "arrival is"),
    (GOOD.replace("2", "0"), "output_tokens is 0"),
    (GOOD.replace("2", "2.5"), "output_tokens"), (GOOD.replace("3", '"x"'), "tokens is 'x'"),
    (GOOD.replace("3", "1e99"), "prompt_tokens"),
    ('{"arrival": 1, "output_tokens": 2}', "prompt_tokens is None"),
    (GOOD[:-1] + ', "prompt": "x"}', "a prompt, and the length of one"),
    (GOOD[:-1] + ', "prompt": 5}', "prompt is 5"),
    ('{"arrival": 1, "output_tokens": 2, "prompt": "\\ud800"}', "half a character"),
    (GOOD[:-1] + ', "prefix_tokens": 4, "group": "a"}', "longer than its prompt"),
    (GOOD[:-1] + ', "prefix_tokens": 2}', "no group"),
    (GOOD[:-1] + ', "promt": "x"}', "'promt'")])
def test_a_bad_line_of_a_trace_is_named(tmp_path, line, says):
    path = tmp_path / "bad.jsonl"
    line = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\n" + line + b"\n")
    with pytest.raises(GearworksError) as failure:
        read_trace(path)
    assert failure.value.why.startswith("line 3: ") and says in failure.value.why
    path.write_bytes(b" \n")
    with pytest.raises(GearworksError, match="no requests"):
        read_trace(path)


def test_the_trace_that_comes_along_is_what_its_program_draws(tmp_path):
    write_trace(tmp_path / "again.jsonl", chat.chat(Random(chat.SEED)))
    assert (tmp_path / "again.jsonl").read_bytes() == find_trace("chat").read_bytes()
    made = read_trace(find_trace("chat"))
    assert len(made) == 32 and made[-1].arrival < 60
    assert all(each.prompt_tokens <= 1024 and each.output_tokens <= 256 for each in made)
    assert sum(each.output_tokens for each in made) < 6000
    assert len({each.group for each in made}) < len(made)           # conversations go on


def test_what_the_program_draws_has_the_published_figures():
    """Not one trace that suits, but the distribution that its numbers come from."""
    drawn = [each for seed in range(200) for each in chat.chat(Random(seed))]
    first = {}
    for each in drawn:
        first.setdefault(each.group, each)
    gap = np.concatenate([np.diff([each.arrival for each in chat.chat(Random(seed))])
                          for seed in range(200)])
    assert gap.mean() == pytest.approx(1.0, rel=0.05) and gap.std() > 1.2
    answers = [each.output_tokens for each in drawn]
    assert plain.median(answers) == pytest.approx(chat.ANSWERS.median, rel=0.03)


# --- Server-sent events -----------------------------------------------------------------------

@settings(deadline=None)
@given(events=st.lists(st.lists(st.text(st.characters(exclude_characters="\r\n",
                                                      exclude_categories=["Cs"])),
                                min_size=1)), data=st.data())
def test_events_however_the_network_cuts_them(events, data):
    """Any ends of lines, other fields between them, borders within characters too."""
    def end():
        """The end of a line; one that \\n would only prolong is followed by another."""
        return data.draw(st.sampled_from(["\r", "\r\n"] + ["\n"] * (stream[-1:] != "\r")))
    noise = st.sampled_from(["", ": a comment", "id: 7", "event: x", "retry: 9", "dat: y"])
    stream = data.draw(st.sampled_from(["", "\ufeff"]))
    for lines in events:
        for line in lines:
            other = data.draw(noise)
            if other:
                stream += other
                stream += end()
            bare = not line.startswith(" ") and data.draw(st.booleans())
            stream += f"data:{'' if bare else ' '}{line}"
            stream += end()
        stream += end()
    sent = stream.encode()
    borders = sorted(data.draw(st.lists(st.integers(0, len(sent)))))
    parser, found = EventParser(), []
    for start, end in zip([0, *borders], [*borders, len(sent)]):
        found += parser.feed(sent[start:end])
    assert found == ["\n".join(lines) for lines in events]


def test_an_event_is_told_when_it_ends_and_not_one_byte_later():
    parser = EventParser()
    assert parser.feed(b"data: 1\r\n") == [] and parser.feed(b"\r") == ["1"]
    assert parser.feed(b"\ndata: 2\n") == [] and parser.feed(b"\n") == ["2"]
    assert parser.feed(b"data: never ends") == []
    parser = EventParser()                          # half the end of a line is no empty line
    assert parser.feed(b"data: a\r") + parser.feed(b"\ndata: b\r\n\r\n") == ["a\nb"]


# --- Arithmetic -------------------------------------------------------------------------------

def done(arrival, *chunks, end=None, **more) -> Measurement:
    return Measurement(arrival, sent=more.pop("sent", arrival), chunks=[*chunks],
                       end=chunks[-1] if end is None else end, error=None, status=200, **more)


def test_the_figures_follow_from_the_times():
    run = [done(0.0, 1.0, 1.5, 2.5, end=2.75, output_tokens=4, prompt_tokens=10,
                cached_tokens=8),
           done(1.0, 4.0, 4.25, sent=1.25, output_tokens=2, prompt_tokens=20, cached_tokens=0),
           done(2.0, 2.5, output_tokens=1, prompt_tokens=5),
           Measurement(3.0, sent=3.0, chunks=[3.1], end=5.0, error="cut"),
           Measurement(3.5, sent=3.5, end=3.6, error="HTTP 429", status=429)]
    found = statistics.summarise(run, {"ttft": 1.0, "tpot": 0.5})
    assert (found.requests, found.completed, found.errors) == (5, 3, {"cut": 1, "HTTP 429": 1})
    assert found.seconds == 5.0                         # to the end of the last, which failed
    assert (found.ttft.count, found.ttft.mean, found.ttft.median) == (3, 1.5, 1)    # 1, 3, 0.5
    assert (found.itl.count, found.itl.median) == (3, 0.5)                  # 0.5, 1, 0.25
    assert (found.tpot.count, found.tpot.median) == (2, 0.375)              # 1.5/3, 0.25/1
    assert (found.e2e.count, found.e2e.median) == (3, 2.75)                 # 2.75, 3.25, 0.5
    assert (found.lateness.count, found.lateness.mean) == (5, 0.05)
    assert found.output_tokens == 7 and found.output_tokens_per_second == 7 / 5
    assert found.requests_per_second == 3 / 5
    assert (found.prompt_tokens, found.cached_tokens, found.uncounted) == (35, 8, 0)
    assert (found.good, found.goodput) == (2, 2 / 5)    # the second waited 3 s for a token
    assert statistics.summarise(run, {"e2e": 3.0, "tpot": 0.4}).good == 1
    assert statistics.summarise(run).good is None
    assert found.peak_in_flight == 3                    # at 2.0: the first three


def test_figures_of_nothing():
    for run in ([], [Measurement(0.0)], [Measurement(0.0, sent=0.0, end=0.0, error="cut")]):
        found = statistics.summarise(run, {"ttft": 1.0})
        assert (found.completed, found.ttft, found.requests_per_second) == (0, None, 0.0)
        assert (found.good, found.prompt_tokens) == (0, None)
        assert "0 of" in report.table(report.Result({}, {"ttft": 1.0}, run))
    empty = statistics.summarise([done(0.0, end=1.0)])
    assert (empty.completed, empty.ttft, empty.e2e.median) == (1, None, 1.0)
    assert empty.output_tokens == 0


def test_without_usage_pieces_are_counted_and_that_is_said():
    run = [done(0.0, 1.0, 2.0, 3.0), done(0.0, 1.0, 2.0, output_tokens=7)]
    found = statistics.summarise(run)
    assert (found.output_tokens, found.uncounted, found.cached_tokens) == (10, 1, None)
    assert "without usage of the server for 1 answer" in report.table(
        report.Result({}, {}, run))


@settings(deadline=None)
@given(values=st.lists(TIMES, min_size=1))
def test_percentiles_are_numpys(values):
    found = statistics.distribution(values)
    assert found.count == len(values)
    assert ([found.median, found.p90, found.p99]
            == pytest.approx(np.quantile(values, [0.5, 0.9, 0.99]).tolist(), abs=1e-8))
    assert found.mean == pytest.approx(np.mean(values), abs=1e-8)


@settings(deadline=None)
@given(spans=st.lists(st.tuples(TIMES, TIMES)))
def test_requests_in_flight_are_those_whose_time_it_is(spans):
    run = [Measurement(0.0, sent=min(span), end=max(span)) for span in spans]
    steps = statistics.in_flight(run)
    for time_, number in steps:
        assert number == sum(each.sent <= time_ < each.end for each in run)
    assert not steps or steps[-1][1] == 0


# --- The loops, with a clock that a test turns ------------------------------------------------

class Time:
    """A clock that moves when somebody sleeps, and at no other time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)                          # what was begun happens before
        self.now += seconds

    async def sleep_badly(self, seconds: float) -> None:
        """Wake up early, as Windows does by a few milliseconds."""
        await self.sleep(seconds / 2 if seconds > 0.01 else seconds)


def planned(*times: float) -> list[Planned]:
    return [Planned(TraceRequest(time_, 1, 1), str(number))
            for number, time_ in enumerate(times)]


def test_an_open_loop_waits_for_no_answer():
    clock, sent, never = Time(), [], asyncio.Event()

    async def send(measured, prompt):
        sent.append((measured.arrival, clock(), prompt))
        if len(sent) == 4:
            never.set()
        await never.wait()
        measured.error = None
    run = Run(send, clock, clock.sleep_badly)
    asyncio.run(run.open_loop(planned(0.0, 0.5, 0.5, 7.0)))
    assert sent == [(0.0, 0.0, "0"), (0.5, 0.5, "1"), (0.5, 0.5, "2"), (7.0, 7.0, "3")]
    assert (run.finished, run.failed, run.in_flight) == (4, 0, 0)


def test_latency_counts_from_the_arrival_that_was_intended():
    """Whatever keeps the generator from sending: here a second of work in its own loop."""
    clock = Time()

    async def send(measured, prompt):
        measured.sent = clock()
        clock.now += 1.0
        measured.chunks, measured.end, measured.error = [clock()], clock(), None
    run = Run(send, clock, clock.sleep)
    asyncio.run(run.open_loop(planned(0.0, 0.1, 0.2)))
    assert [each.arrival for each in run.measurements] == [0.0, 0.1, 0.2]
    found = statistics.summarise(run.measurements)
    assert found.lateness.p99 > 0 and found.ttft.p99 > found.lateness.p99


@pytest.mark.parametrize("concurrency, most", [(1, 1), (3, 3), (50, 10)])
def test_a_closed_loop_asks_when_it_has_its_answer(concurrency, most):
    clock, peak = Time(), []

    async def send(measured, prompt):
        peak.append(run.in_flight)
        await clock.sleep(1.0)
        measured.error = None
    run = Run(send, clock, clock.sleep)
    asyncio.run(run.closed_loop(planned(*[0.0] * 10), concurrency))
    assert len(run.measurements) == 10 and max(peak) == most
    assert all(each.arrival <= clock() for each in run.measurements)


def test_a_closed_loop_begins_nothing_after_its_duration():
    clock = Time()

    async def send(measured, prompt):
        await clock.sleep(1.0)
    run = Run(send, clock, clock.sleep)
    asyncio.run(run.closed_loop(planned(*[0.0] * 10), 1, duration=2.5))
    assert [each.arrival for each in run.measurements] == [0.0, 1.0, 2.0]


def test_what_was_measured_survives_an_interrupt():
    async def send(measured, prompt):
        if prompt == "0":
            measured.error = None
            return
        await asyncio.Event().wait()
    run = Run(send, Stopwatch())

    async def interrupted():
        task = asyncio.create_task(run.open_loop(planned(0.0, 0.0)))
        while len(run.measurements) < 2 or run.finished < 1:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    asyncio.run(interrupted())
    assert [each.error for each in run.measurements] == [None, "unfinished"]


def test_a_run_is_recorded_as_it_was():
    run = [done(0.25, 1.0, 2.0, output_tokens=7), Measurement(0.5, error="cut"),
           Measurement(0.75, sent=1.0, end=1.0, error=None)]
    load = [Planned(TraceRequest(9.0, 20, 3, group="g", prefix_tokens=2), "a b c"),
            Planned(TraceRequest(9.0, 30, 1), "d"), Planned(TraceRequest(9.0, 40, 1), "e")]
    assert [*as_trace(load, run)] == [TraceRequest(0.25, 7, prompt="a b c", group="g"),
                                      TraceRequest(0.5, 30, prompt="d"),
                                      TraceRequest(0.75, 40, prompt="e")]


# --- A real server ----------------------------------------------------------------------------

def event(content: str | None = None, finish: str | None = None, **more) -> bytes:
    choice = {"index": 0, "delta": {} if content is None else {"content": content},
              "text": content, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]} | more)}\n\n".encode()


USAGE = {"prompt_tokens": 30, "completion_tokens": 5,
         "prompt_tokens_details": {"cached_tokens": 16}}
END = b"data: [DONE]\n\n"
ANSWER = [event(), event("a"), event("b c"), event(None, "length"),
          event(choices=[], usage=USAGE), END]


class Server:
    """A server on a free port of this machine that does what `behave` says.

    behave: from the number of a request and its body to a response of Starlette, or to the
    pieces of a stream: bytes, exceptions, or events to wait for. asked: (path, body, headers)
    so far. ports: those of the connections.
    """

    def __init__(self, behave: Callable, models: object = None):
        self.behave, self.asked, self.ports = behave, [], set()
        self.models = {"data": [{"id": "tiny"}]} if models is None else models

        async def answer(request):
            self.ports.add(request.client.port)
            self.asked.append((request.url.path, await request.json(), request.headers))
            what = self.behave(len(self.asked) - 1, self.asked[-1][1])
            return what if hasattr(what, "status_code") else StreamingResponse(
                self._stream(what), media_type="text/event-stream")

        async def list_models(request):
            self.asked_for_models = request.headers
            return (self.models if hasattr(self.models, "status_code")
                    else JSONResponse(self.models))
        app = Starlette(routes=[Route("/v1/models", list_models),
                                Route("/v1/chat/completions", answer, methods=["POST"]),
                                Route("/v1/completions", answer, methods=["POST"])])
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off",
                                                     timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run,
                                        kwargs={"sockets": [self._socket]})

    @staticmethod
    async def _stream(pieces):
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                yield piece
            else:
                await piece.wait()

    def __enter__(self) -> "Server":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def ask(server: Server, count: int = 1, **settings) -> list[Measurement]:
    """Send so many requests at once, and wait for what becomes of them."""
    async def run():
        clock = Stopwatch()
        async with Client(server.url, clock=clock, **{"timeout": 120.0} | settings) as client:
            await client.choose_model(None)
            made = [Measurement(clock(), asked_output_tokens=9) for _ in range(count)]
            await asyncio.gather(*(client.send(each, "What is it?") for each in made))
            return made
    return asyncio.run(run())


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_answer_is_measured_as_it_comes(endpoint):
    with Server(lambda number, body: ANSWER) as server:
        [found] = ask(server, endpoint=endpoint, key="secret", ignore_eos=True)
    path, body, headers = server.asked[0]
    assert headers["accept-encoding"] == "identity"     # nobody is to wait for a whole block
    expected = ({"messages": [{"role": "user", "content": "What is it?"}]}
                if endpoint == "chat" else {"prompt": "What is it?"})
    assert path == {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    assert body == expected | {"model": "tiny", "max_tokens": 9, "temperature": 0,
                               "stream": True, "stream_options": {"include_usage": True},
                               "ignore_eos": True}
    assert headers["authorization"] == "Bearer secret" == server.asked_for_models[
        "authorization"]
    assert (found.error, found.status, found.finish_reason) == (None, 200, "length")
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (30, 5, 16)
    assert len(found.chunks) == 2                       # the role alone and the end are no text
    assert found.sent <= found.chunks[0] <= found.chunks[1] <= found.end


def test_no_key_and_no_ignored_end_unless_asked_for():
    with Server(lambda number, body: ANSWER) as server:
        ask(server)
    assert "authorization" not in server.asked[0][2] and "ignore_eos" not in server.asked[0][1]


@pytest.mark.parametrize("behave, error, says", [
    (lambda: [event("a"), event("b")], "cut", "ended before"),
    (lambda: [event("a"), RuntimeError("the engine died")], "cut", ""),
    (lambda: JSONResponse({"error": {"message": "too many"}}, 429, {"Retry-After": "7"}),
     "HTTP 429", "429: too many"),
    (lambda: JSONResponse(["?"], 500), "HTTP 500", '["?"]'),
    (lambda: JSONResponse({}, 307, {"Location": "http://203.0.113.7/"}), "HTTP 307", "307"),
    (lambda: [event("a"), b'data: {"error": {"message": "out of blocks"}}\n\n', END],
     "error in the stream", "out of blocks"),
    (lambda: [event("a"), b"data: {oops\n\n"], "not readable", "{oops"),
    (lambda: [b"data: 5\n\n"], "not readable", "5"),
    (lambda: [b'data: {"choices": [3]}\n\n'], "not readable", "3"),
    (lambda: [b"data: " + b"[" * 99_999 + b"\n\n"], "not readable", "[["),
    (lambda: JSONResponse({"choices": []}), "not a stream", "200"),
], ids=["end-missing", "connection-cut", "429", "500", "redirect", "error-event", "no-json",
        "a-number", "odd-choices", "deep", "no-stream"])
def test_failures_are_told_apart_and_nothing_is_sent_twice(behave, error, says):
    with Server(lambda number, body: behave()) as server:
        [found] = ask(server)
    assert len(server.asked) == 1
    assert found.error == error and says in found.message and found.end is not None
    assert found.retry_after == ("7" if error == "HTTP 429" else None)
    assert statistics.summarise([found]).errors == {error: 1}


def test_a_request_that_takes_too_long_and_a_server_that_is_gone():
    with Server(lambda number, body: [event("a"), asyncio.Event()]) as server:
        [found] = ask(server, timeout=0.3)
    assert (found.error, len(found.chunks)) == ("timeout", 1)

    async def send():
        measured = Measurement(0.0)
        async with Client(server.url, clock=Stopwatch()) as client:
            await client.send(measured, "?")
        return measured
    assert asyncio.run(send()).error == "no connection"


@pytest.mark.parametrize("pieces, count", [
    ([event("a"), event("b"), event("c", "stop"), END], 3),         # no usage at all
    ([event("a", usage=None), event("b", "stop"), END], 2),         # null usage, as vLLM has it
    ([event("a"), event("b", "stop")], 2),                          # no [DONE]
    ([event("a", usage={"completion_tokens": 9}), END], 9),         # half a usage
    ([event("a", "stop", usage={"completion_tokens": "x"}), END], 1),
    ([END], 0)], ids=["none", "null", "no-done", "half", "text", "empty"])
def test_servers_differ_in_what_they_count(pieces, count):
    with Server(lambda number, body: pieces) as server:
        [found] = ask(server)
    assert (found.error, found.generated, found.prompt_tokens) == (None, count, None)


def test_thoughts_are_tokens_too():
    thought = b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    with Server(lambda number, body: [thought, event("a", "stop"), END]) as server:
        assert len(ask(server)[0].chunks) == 2


def test_all_answers_may_be_open_at_a_time():
    """All requests are there before the first is answered, more than httpx would let through by
    itself; a bound on them would show as timeouts."""
    count, everybody = 130, asyncio.Event()

    def behave(number, body):
        if number == count - 1:
            everybody.set()
        return [everybody, *ANSWER]
    with Server(behave) as server:
        found = ask(server, count)
        assert [each.error for each in found] == [None] * count
    assert max(each.sent for each in found) < min(each.chunks[0] for each in found)


def test_a_connection_is_used_again():
    async def one_after_another():
        async with Client(server.url, clock=Stopwatch()) as client:
            await client.warm_up(4, seed=0)
    with Server(lambda number, body: ANSWER) as server:
        asyncio.run(one_after_another())
    assert len(server.asked) == 4 and len(server.ports) == 1


def test_slow_answers_delay_no_arrival():
    """The first answers come only after the last request has arrived."""
    last = asyncio.Event()

    def behave(number, body):
        if number == 19:
            last.set()
        return [last, *ANSWER]
    with Server(behave) as server:
        clock = Stopwatch()
        client = Client(server.url, timeout=120, clock=clock)
        run = Run(client.send, clock)

        async def go():
            async with client:
                await run.open_loop(planned(*[number / 100 for number in range(20)]))
        asyncio.run(go())
    assert [each.error for each in run.measurements] == [None] * 20
    assert [each.arrival for each in run.measurements] == [number / 100 for number in range(20)]
    assert all(each.sent >= each.arrival for each in run.measurements)
    assert (min(each.chunks[0] for each in run.measurements)
            >= max(each.sent for each in run.measurements))
    assert run.measurements[0].ttft >= 0.19             # it waited for the last; that counts


@pytest.mark.parametrize("models, says", [
    ({"data": []}, "has no models"), ({"data": [{"id": 3}]}, "has no models"),
    ([], "has no models"),
    (JSONResponse({"error": {"message": "who are you"}}, 401), "--api-key"),
    (JSONResponse({}, 404), "404"), (StreamingResponse(iter([b"<html>"])), "<html>")])
def test_a_server_without_models_is_refused(models, says):
    with Server(lambda number, body: ANSWER, models) as server:
        with pytest.raises(GearworksError, match="has no models") as failure:
            ask(server)
    assert says in str(failure.value) and server.asked == []


def test_addresses():
    for url in ("http://127.0.0.1:80", "http://127.0.0.1:80/", "http://127.0.0.1:80/v1",
                "http://127.0.0.1:80/v1/"):
        assert base_url(url) == "http://127.0.0.1:80"
    assert base_url("https://[::1]/openai/v1") == "https://[::1]/openai"
    for url in ("", "127.0.0.1:8000", "localhost", "ftp://x", "http://", "http://:80",
                "http://x:99999", "http://x:0", "http://x y", "http://x?a=b", "http://x#a",
                "http://[::1", "file:///etc/passwd"):
        with pytest.raises(UsageError, match="not the address of a server"):
            base_url(url)
    assert all(map(is_own_machine, ["http://127.0.0.1", "http://127.9.9.9:1", "http://localhost"]))
    assert not any(map(is_own_machine, ["http://203.0.113.7", "http://[2001:db8::1]",
                                        "http://192.0.2.1:80"]))
    with pytest.raises(NotAvailableError, match="no address"):
        is_own_machine("http://" + "x" * 300)


# --- The command ------------------------------------------------------------------------------

@contextlib.contextmanager
def answering(behave=lambda number, body: ANSWER, models=None):
    with Server(behave, models) as server:
        yield server


def fast(url: str, *more: str) -> list[str]:
    return ["load", url, "--rate", "inf", "--max-requests", "6", *more]


def test_the_command_measures_saves_and_draws(tmp_path, capsys):
    files = {name: tmp_path / name for name in ("a.json", "a.svg", "a.jsonl")}

    def behave(number, body):
        return JSONResponse({}, 429, {"Retry-After": "3"}) if number == 4 else ANSWER
    with answering(behave) as server:
        assert cli.main(fast(server.url + "/v1", "--json", str(files["a.json"]), "--plot",
                             str(files["a.svg"]), "--record", str(files["a.jsonl"]),
                             "--goodput", "ttft:60000", "e2e:60000", "--prefix", "1:40",
                             "--warmup", "2")) == 0
    output, error = capsys.readouterr()
    assert "tiny, requests in an open loop at inf/s" in output
    assert "5 of 6 answers" in output and "; 1 HTTP 429" in output
    assert "5 of 6 with ttft ≤ 60000 ms, e2e ≤ 60000 ms" in output
    assert "150  (80 of them were cached)" in output
    assert "HTTP 429: " in error and "(Retry-After: 3)" in error
    assert len(server.asked) == 8                       # two to warm up, and none sent twice
    prompts = [body["messages"][0]["content"] for _, body, _ in server.asked]
    assert len({*prompts}) == 8
    assert len({tuple(prompt.split()[:40]) for prompt in prompts[2:]}) == 1

    content = json.loads(files["a.json"].read_text("utf-8"))
    assert len(content["requests"]) == 6 and content["summary"]["output_tokens"] == 25
    assert content["settings"]["model"] == "tiny" and content["bounds"]["ttft"] == 60
    loaded = report.load(files["a.json"])
    assert loaded.summary() == statistics.summarise(loaded.measurements, loaded.bounds)
    assert loaded.summary().errors == {"HTTP 429": 1}
    picture = files["a.svg"].read_text("utf-8")
    assert "time to first token" in picture and "requests in flight" in picture
    assert "5 values" in picture and "1 failed" in picture

    with answering() as server:                         # the same prompts, out of the file
        assert cli.main(["load", server.url, "--warmup", "0", "--trace",
                         str(files["a.jsonl"])]) == 0
    again = [body["messages"][0]["content"] for _, body, _ in server.asked]
    assert sorted(again) == sorted(prompts[2:])
    assert [body["max_tokens"] for _, body, _ in server.asked].count(5) == 5


def test_a_seed_decides_what_is_sent_and_when(tmp_path):
    def sent(*more):
        with answering() as server:
            assert cli.main(fast(server.url, "--warmup", "0", *more)) == 0
        return sorted((body["messages"][0]["content"], body["max_tokens"])
                      for _, body, _ in server.asked)
    assert sent() == sent() == sent("--seed", "0") != sent("--seed", "1")
    assert {count for _, count in sent("--output-tokens", "12")} == {12}
    assert {len(prompt.split()) for prompt, _ in sent("--prompt-tokens", "7")} == {7}


def test_closed_loops_traces_durations_and_endpoints(capsys):
    with answering() as server:
        assert cli.main(["load", server.url, "--concurrency", "2", "--max-requests", "5",
                         "--endpoint", "completions", "--model", "mine", "--api-key", "k"]) == 0
        assert "closed loop of 2" in capsys.readouterr().out
        assert len(server.asked) == 6
        path, body, headers = server.asked[-1]
        assert (path, body["model"]) == ("/v1/completions", "mine")
        assert headers["authorization"] == "Bearer k" and body["prompt"]
        server.asked.clear()
        assert cli.main(["load", server.url, "--trace", "chat", "--duration", "1",
                         "--warmup", "0"]) == 0
        assert [len(body["messages"][0]["content"].split())
                for _, body, _ in server.asked] == [4, 28, 89]
        server.asked.clear()
        assert cli.main(["load", server.url, "--concurrency", "1", "--duration", "0.2",
                         "--warmup", "0"]) == 0
        assert server.asked


def test_the_environments_key_is_used_and_its_proxy_is_not(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "from-outside")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with answering() as server:
        assert cli.main(fast(server.url)) == 0
    assert server.asked[0][2]["authorization"] == "Bearer from-outside"
    monkeypatch.setenv("OPENAI_API_KEY", "two\nlines")
    assert cli.main(fast(server.url)) == 2
    assert "OPENAI_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize("behave, more, says", [
    (lambda number, body: JSONResponse({"error": {"message": "no key"}}, 401), [], "--api-key"),
    (lambda number, body: JSONResponse({}, 500), [], "--warmup 0"),
    (lambda number, body: JSONResponse({}, 500), ["--warmup", "0"], "no answer came whole")])
def test_a_server_that_answers_nothing(behave, more, says, capsys):
    with answering(behave) as server:
        assert cli.main(fast(server.url, *more)) == 1
    assert says in capsys.readouterr().err
    assert len(server.asked) == (6 if more else 1)


def test_a_server_that_is_not_there_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for more in ([], ["--model", "any"]):
        assert cli.main(["load", f"http://127.0.0.1:{port}", *more]) == 1
        error = capsys.readouterr().err
        assert f"no server answers at http://127.0.0.1:{port}\n  Why  " in error


def test_a_trace_that_cannot_be_used_is_refused_before_the_server_is_asked(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(GOOD + "\n" + GOOD.replace("2", "none") + "\n", encoding="utf-8")
    with answering() as server:
        assert cli.main(["load", server.url, "--trace", str(trace)]) == 1
        assert "line 2: " in capsys.readouterr().err
        assert cli.main(["load", server.url, "--trace", str(tmp_path / "none")]) == 1
        assert "cannot read the trace" in capsys.readouterr().err
        trace.write_text(GOOD, encoding="utf-8")
        assert cli.main(["load", server.url, "--trace", str(trace), "--duration", "0.5"]) == 2
        assert "nothing to send" in capsys.readouterr().err
        assert cli.main(fast(server.url, "--json", str(tmp_path))) == 1
        assert "it is a folder" in capsys.readouterr().err
    assert server.asked == []


def test_without_matplotlib_nothing_is_measured_for_a_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with answering() as server:
        assert cli.main(fast(server.url, "--plot", str(tmp_path / "a.svg"))) == 1
    assert "matplotlib is missing" in capsys.readouterr().err and server.asked == []


def test_two_results_side_by_side(tmp_path, capsys):
    slow = [done(0.0, 1.0, 3.0, output_tokens=2), done(0.0, 1.0, 5.0, output_tokens=2)]
    quick = [done(0.0, 0.5, 1.5, output_tokens=2), done(0.0, 0.5, 2.5, output_tokens=2),
             Measurement(0.0, sent=0.0, end=1.0, error="cut")]
    for name, run, seed in (("slow", slow, 0), ("quick", quick, 1)):
        report.save(report.Result({"url": name, "seed": seed}, {}, run),
                    tmp_path / f"{name}.json")
    assert cli.main(["load", "--compare", str(tmp_path / "slow.json"),
                     str(tmp_path / "quick.json")]) == 0
    first, *rows, _, note = capsys.readouterr().out.splitlines()
    assert first.split() == ["slow", "quick", "ratio"]
    assert note == "They differ in seed: 0 and 1."
    lines = {row[:36].strip(): row[36:].split() for row in rows}
    assert lines["output tokens a second"] == ["0.80", "1.60", "2.000"]
    assert lines["time to first token, median, ms"] == ["1000.00", "500.00", "0.500"]
    assert lines["requests that failed"] == ["0", "1", "-"]


@pytest.mark.parametrize("content", [
    b"", b"\xff", b"[]", b"{}", b'{"format": "other"}', b"[" * 99_999,
    b'{"format": "gearworks load 1", "bounds": {"x": 1}, "settings": {}, "requests": []}',
    b'{"format": "gearworks load 1", "bounds": {}, "settings": {}, "requests": [{"a": 1}]}',
    b'{"format": "gearworks load 1", "bounds": {}, "settings": {}, "requests": [3]}',
    b'{"format": "gearworks load 1", "bounds": {}, "settings": {}, "requests": '
    b'[{"arrival": 1, "chunks": ["x"]}]}',
    b'{"format": "gearworks load 1", "bounds": {}, "settings": {}, "requests": '
    b'[{"arrival": 1, "error": null}]}'])
def test_files_that_hold_no_result_are_refused(tmp_path, capsys, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert cli.main(["load", "--compare", str(path), str(path)]) == 1
    assert "no result of a load test" in capsys.readouterr().err
    assert cli.main(["load", "--compare", str(tmp_path / "none"), str(path)]) == 1
    assert "cannot read" in capsys.readouterr().err


@settings(deadline=None)
@given(run=st.lists(st.builds(
    Measurement, arrival=TIMES, sent=TIMES, chunks=st.lists(TIMES), end=TIMES,
    error=st.none() | NAMES, message=NAMES, output_tokens=st.none() | st.integers(0, 9))))
def test_a_result_that_was_saved_is_loaded_again(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "result.json"
    made = report.Result({"seed": 1}, {"ttft": 0.5}, run)
    report.save(made, path)
    assert report.load(path) == made


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_interrupt_shows_what_was_measured_so_far(tmp_path):
    """The third request is sent when two are answered, and gets no answer."""
    third = threading.Event()

    def behave(number, body):
        if number == 2:
            third.set()
            return [event("a"), asyncio.Event()]
        return ANSWER
    with answering(behave) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "gearworks", "load", server.url, "--concurrency", "1",
             "--warmup", "0", "--json", str(tmp_path / "cut.json")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        assert third.wait(60)
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    assert "2 of 3 answers" in output and "1 unfinished" in output and "interrupted" in error
    assert report.load(tmp_path / "cut.json").summary().errors == {"unfinished": 1}


# --- How many replicas ------------------------------------------------------------------------

FOUR = plan.Machine(memory=4 * 80e9, bandwidth=4 * 2.0e12, flops_per_second=4 * 312e12)
LAPTOP = plan.Machine(memory=16e9, bandwidth=12.5e9, flops_per_second=1e11)


@pytest.mark.parametrize("name, machine, tokens, speed", [
    ("Llama-2-70B", FOUR, 2048, 20), ("Llama-2-70B", FOUR, 2048, 50),
    ("SmolLM2-135M", LAPTOP, 512, 5), ("SmolLM2-135M", LAPTOP, 8, 5)])
def test_one_user_more_would_be_too_many(name, machine, tokens, speed):
    shape = accounting.SHAPES[name]
    room = plan.users_by_memory(shape, machine, tokens)
    needed = [sum(accounting.memory_bytes(shape, "float16", users * tokens).values())
              for users in (room, room + 1)]
    assert needed[0] <= machine.memory < needed[1]
    users = plan.users_by_speed(shape, machine, tokens, speed)
    each = [accounting.roofline_tokens_per_second(
        shape, "float16", bandwidth=machine.bandwidth, batch=count, past_tokens=tokens,
        flops_per_second=machine.flops_per_second) / count for count in (users, users + 1)]
    assert each[1] < speed <= each[0]
    fitting = min(room, users)
    assert [plan.replicas(shape, machine, count, tokens, speed)
            for count in (1, fitting, fitting + 1, 3 * fitting)] == [1, 1, 2, 3]


@pytest.mark.parametrize("machine, speed, says", [
    (LAPTOP, 1, "its weights take 138 GB"), (FOUR, 1000, "1000 tokens a second")])
def test_a_load_that_no_replica_can_serve_is_refused(machine, speed, says):
    with pytest.raises(GearworksError, match=says):
        plan.replicas(accounting.SHAPES["Llama-2-70B"], machine, 1, 2048, speed)


def test_what_reaches_the_roofline_is_used_wholly():
    shape = accounting.SHAPES["SmolLM2-135M"]
    best = accounting.roofline_tokens_per_second(shape, "float32", bandwidth=12.5e9, batch=8,
                                                 past_tokens=99, flops_per_second=1e11)
    assert plan.utilisation(best, shape, LAPTOP, 8, 99, "float32") == 1.0


@pytest.mark.parametrize("users", [1, 8, 200])          # the last are bound by arithmetic
def test_the_least_seconds_of_a_step_are_those_of_the_roofline(users):
    shape = accounting.SHAPES["SmolLM2-135M"]
    best = accounting.roofline_tokens_per_second(
        shape, "float32", bandwidth=12.5e9, batch=users, past_tokens=99, flops_per_second=1e11,
        cache_dtype="float32")
    rows = tuple(Row(f"{number}/0", 99, 1, 0, False, ()) for number in range(users))
    step = StepRecord(0, 0.1, 0.1, rows)
    assert plan.least_seconds([step] * 3, shape, LAPTOP) == pytest.approx(3 * users / best)
    assert plan.least_seconds([], shape, LAPTOP) == 0
