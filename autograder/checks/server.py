"""Checks of the server's protocol: events, chunks, requests, and calls found in text."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_equal, expect_returned,
                                 expect_unchanged)
from autograder.checking.differential import expect_agreement, expect_on_all
from autograder.checking.examples import docstring_example
from autograder.checks.decoding import byte_tokenizer, cuts, letters
from autograder.generators.calls import Call
from autograder.generators.files import with_fault
from autograder.generators.texts import SIGNS, WHITE_SPACE, texts
from gearworks.errors import ModelError
from gearworks.sampling import TokenLogprob
from gearworks.server.api_error import APIError
from gearworks.server.chat_text import FreeCalls
from gearworks.server.protocol import chat_chunks as reference_chunks
from gearworks.server.protocol import sse_event as reference_event
from gearworks.server.protocol import validate_request as reference_request
from gearworks.server.reply import Reply
from gearworks.server.request_types import (ChatRequest, CompletionRequest, DetokenizeRequest,
                                            Limits)
from gearworks.server.tools import MARKERS
from gearworks.server.tools import parse_tool_calls as reference_calls
from gearworks.serving.request import Delta, Request

# --- sse_event

EVENT = "server.sse_event"


def expect_event(sse_event, data: Any, event: str | None = None, hint: str = "") -> None:
    with expect_unchanged(data):
        got = sse_event(data) if event is None else sse_event(data, event)
    right = reference_event(data, event)
    expect_returned(got, "bytes, one event")
    expect(isinstance(got, bytes), "bytes, ready for the wire",
           f"{'a' if isinstance(got, bytearray) else 'the'} {type(got).__name__} {got!r:.60}",
           "What does `str.encode` give?")
    of = f"the event for {data!r:.50}" + (f" of the type {event!r}" if event else "")
    if len(got) + len(right) <= 160:
        expect(got == right, f"{of} to be {right!r}", repr(got), hint)
    expect_equal(got, right, of=of, hint=hint)


example_of_sse_event = docstring_example(EVENT, points=0.5)


@check(EVENT, points=0.5, public=True)
def one_event(sse_event, rng):
    """An object as JSON on one line, a text as it is, a type before it,
    and an empty line at the end."""
    expect_event(sse_event, {"a": "é\n"}, hint="The docstring's example, byte for byte.")
    for text in ("[DONE]", " two  spaces "):
        expect_event(sse_event, text, hint="It is no JSON: the text goes out as it is.")
    word = letters(rng, 5)
    expect_event(sse_event, {"delta": {"content": f"{word}\r\n\n 中🚀"}, "usage": None},
                 hint="Line breaks inside of a text are JSON's business; every other character "
                      "is sent as it is.")
    expect_event(sse_event, {"type": word}, f"response.{word}",
                 "`event: ` and the type, on a line of its own, before the data.")
    expect_event(sse_event, {"z": 1, "a": [{"y": 0.5, "b": None}]},
                 hint="What the object says first comes first.")
    expect_event(sse_event, {}, hint="An empty object is an event, too.")


@check(EVENT, points=0.5, public=True)
def any_data(sse_event, rng):
    """Texts and objects of every kind, with a type and without one."""
    text = texts(["a", "é", "中"], SIGNS, WHITE_SPACE, ["data: x", '"', "\U0001f680"], most=4,
                 long=False)
    value = st.one_of(text, st.sampled_from([None, 0, 1.5, False, True, [], {}, -3]))
    objects = st.dictionaries(text, st.one_of(value, st.lists(value, max_size=2),
                                              st.dictionaries(text, value, max_size=2)),
                              max_size=3)
    lines = st.sampled_from(["[DONE]", " two  ", "é", "{}", ""])
    data = st.one_of(objects, objects, lines)
    types = st.sampled_from([(), ("response.created",), ("note",)])
    cases = st.builds(lambda data, types: Call((data, *types)), data, types)
    expect_agreement(sse_event, reference_event, cases, rng, examples=100,
                     hint="An object is one line of JSON, a text goes out as it is.")


@check(EVENT, points=0.5, public=False)
def any_event(sse_event, rng):
    """Nested objects, texts of every script, line breaks of every kind."""
    texts = ["", '"', "\\", "data: x\n\ndata: y", "\u2028", "\x00\x1f", "ẞ", "🏳️‍🌈", ": ,",
             "</script>"]
    for _ in range(20):
        chosen = [texts[i] for i in rng.integers(0, len(texts), 3)]
        expect_event(sse_event, {"choices": [{"delta": {"content": chosen[0]}, "n": [1, 2.5]}],
                                 chosen[1]: chosen[2], "t": True},
                     None if rng.random() < 0.5 else "response.output_text.delta")
    expect_event(sse_event, "é ping", "note")


# --- chat_chunks

CHUNKS = "server.chat_chunks"
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("now", "add")]


def call_text(name: str = "now", arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class NumberedCalls(FreeCalls):
    """The calls' ids are their numbers, so that two replies say the same."""

    def _begin(self, name: str) -> dict[str, Any]:
        delta = super()._begin(name)
        delta["tool_calls"][0]["id"] = f"call{self.calls:05}"
        return delta


def new_reply(**asked: Any) -> Reply:
    """A reply to which nothing has come yet. asked: fields of the request."""
    request = ChatRequest(messages=[{"role": "user", "content": "Hi"}], **asked)
    reply = Reply(request, [Request([1, 2, 3], n=request.n, id="r")], byte_tokenizer(), "tiny")
    reply.head = {"id": "chatcmpl-1", "created": 1700000000, "model": "tiny"}
    for answer in reply.answers:
        if request.offered_tools:
            answer.text = NumberedCalls([tool["function"]["name"]
                                         for tool in request.offered_tools])
    return reply


def deltas_of(texts: Sequence[str], finish_reason: str = "stop", index: int = 0,
              logprobs: Sequence[int] = ()) -> list[Delta]:
    """One answer's deltas, a token for each text. logprobs: which of them have some."""
    deltas = [Delta("r", index, text, (97 + place,),
                    (TokenLogprob(97 + place, -0.5 - place, ((98, -1.0),)),)
                    if place in logprobs else ())
              for place, text in enumerate(texts)]
    return [*deltas[:-1], replace(deltas[-1], finish_reason=finish_reason)]


def mixed(rng: np.random.Generator, *answers: Sequence[Delta]) -> list[Delta]:
    """Several answers' deltas, each answer's in their order."""
    order = [number for number, answer in enumerate(answers) for _ in answer]
    streams = [iter(answer) for answer in answers]
    return [next(streams[number]) for number in rng.permutation(order)]


def shown(chunk: Any) -> str:
    """A chunk in a few words."""
    if not isinstance(chunk, dict):
        return repr(chunk)[:100]
    if not chunk.get("choices"):
        return f"{{{', '.join(f'{name!r}: {value!r:.90}' for name, value in chunk.items())}}}"
    choice = chunk["choices"][0]
    return (f"answer {choice.get('index')}: {choice.get('delta')!r:.70}, finish_reason "
            f"{choice.get('finish_reason')!r}" + ", logprobs" * bool(choice.get("logprobs")))


def expect_chunks(chat_chunks, deltas: Sequence[Delta], hint: str = "", steps: int = 1,
                  **asked: Any) -> None:
    """Fail unless the chunks for these deltas are right. steps: in how many calls they come."""
    mine, true = new_reply(**asked), new_reply(**asked)
    borders = [len(deltas) * step // steps for step in range(steps + 1)]
    for start, end in zip(borders, borders[1:]):
        part = list(deltas[start:end])
        made = chat_chunks(part, mine)
        expect_returned(made, "an iterator of chunks")
        got, right = list(made), list(reference_chunks(part, true))
        told = " | ".join(f"{delta.index}:{delta.text!r}" for delta in part)
        for place, (chunk, wanted) in enumerate(zip(got, right)):
            if chunk == wanted:
                continue
            if shown(chunk) == shown(wanted):
                expect_equal(chunk, wanted, of=f"chunk {place} ({shown(wanted)})", hint=hint)
            raise CheckFailure(f"chunk {place} for the texts {told:.120} to be "
                               f"{shown(wanted)}", shown(chunk), hint)
        if len(got) != len(right):
            extra = (f"{len(got)}, the first too many: {shown(got[len(right)])}"
                     if len(got) > len(right) else
                     f"{len(got)}, the first that is missing: {shown(right[len(got)])}")
            raise CheckFailure(f"{len(right)} chunks for the texts {told:.120}", extra, hint)


example_of_chat_chunks = docstring_example(CHUNKS, points=0.5)


@check(CHUNKS, points=1, public=True)
def a_chat(chat_chunks, rng):
    """The role once, the text piece by piece, and at the end why it ended."""
    word = letters(rng, 3)
    for reason in ("stop", "length"):
        expect_chunks(chat_chunks, deltas_of([word, "", " two", ""], reason),
                      "First the role, then one chunk for each piece of text; a delta without "
                      "text has no piece. The last chunk has nothing but the reason.")
        expect_chunks(chat_chunks, deltas_of([word], reason),
                      "An answer of one delta has a beginning, a piece and an end.")
        expect_chunks(chat_chunks, deltas_of([""], reason),
                      "An answer without any text still begins and ends.")


@check(CHUNKS, points=1, public=True)
def usage_at_the_end(chat_chunks, rng):
    """Token counts come if they were asked for, once, when all answers have ended;
    the chunk has choices, none."""
    usage = {"stream_options": {"include_usage": True}}
    for steps in (1, 2):
        deltas = deltas_of([letters(rng, 2), "b"])
        expect_chunks(chat_chunks, deltas, "It was not asked for.", steps)
        expect_chunks(chat_chunks, deltas, "A last chunk, `chunk(reply, ..., [])` with the "
                                           "usage in it.", steps, **usage)
    both = deltas_of(["a"], index=1) + deltas_of(["b", "c"], "length")
    expect_chunks(chat_chunks, both, "One answer has ended, the other has not.", 3, n=2,
                  **usage)


@check(CHUNKS, points=1, public=True)
def several_answers(chat_chunks, rng):
    """Answers that interleave, over several calls: each has its own role and end."""
    deltas = mixed(rng, deltas_of([letters(rng, 2), "b", "c"]),
                   deltas_of(["d", letters(rng, 2)], "length", index=1),
                   deltas_of(["f"], index=2))
    for steps in (1, 3, len(deltas)):
        expect_chunks(chat_chunks, deltas, "Which answer is this delta of? What of it has been "
                                           "sent already?", steps, n=3)


@check(CHUNKS, points=1, public=True, always=(5,))
def tool_calls(chat_chunks, rng):
    """Calls come as their pieces, what was held back comes at the end,
    and the reason is "tool_calls" where a call was the end."""
    hint = "Calls are `answer.text`'s business: push, and finish when the answer has ended."
    text = f"Let me see. {call_text('now')}"
    expect_chunks(chat_chunks, deltas_of(cuts(text, rng) or [text]), hint, tools=TOOLS)
    expect_chunks(chat_chunks, deltas_of([call_text("now"), call_text("add", '{"a": [1, 2]}')]),
                  hint, tools=TOOLS)
    for end in ("<tool", '<tool_call>{"name": "now", ', " \n"):
        expect_chunks(chat_chunks, deltas_of(["It is 1 ", end]),
                      "What looked like a call, and was none, is text.", tools=TOOLS)
    expect_chunks(chat_chunks, deltas_of([call_text("now"), "<tool_call>"], "length"),
                  "The answer was cut off, call or no call.", tools=TOOLS)
    expect_chunks(chat_chunks, deltas_of(["No tools: ", call_text("now")]),
                  "Nobody offered a tool: this is text.")
    both = mixed(rng, deltas_of([call_text("now")]), deltas_of(["no ", "call"], index=1))
    expect_chunks(chat_chunks, both, "Which of the answers has called?", tools=TOOLS, n=2)


@check(CHUNKS, points=1, public=True)
def log_probabilities(chat_chunks, rng):
    """Each delta's log-probabilities come once, beside its first piece,
    or beside an empty one."""
    asked = {"logprobs": True, "top_logprobs": 1}
    expect_chunks(chat_chunks, deltas_of(["a", "", letters(rng, 2)], logprobs=[0, 1, 2]),
                  "A token may have no text yet; its log-probability is known.", **asked)
    expect_chunks(chat_chunks, deltas_of(["a", ""], logprobs=[0]),
                  "A delta without log-probabilities.", **asked)
    expect_chunks(chat_chunks, deltas_of([f"Hm. {call_text('add')}"], logprobs=[0]),
                  "A delta of several pieces.", tools=TOOLS, **asked)


class Watched:
    """Deltas, and how many of them were taken."""

    def __init__(self, deltas: Sequence[Delta]):
        self.taken = 0
        self._deltas = iter(deltas)

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        delta = next(self._deltas)
        self.taken += 1
        return delta


@check(CHUNKS, points=1, public=True)
def as_they_come(chat_chunks, rng):
    """Nobody waits: a chunk is there before the next delta is taken.
    An engine's failure ends the stream with an error."""
    deltas = Watched(deltas_of(list(letters(rng, 4))))
    made = chat_chunks(deltas, new_reply())
    expect_returned(made, "an iterator of chunks")
    stream = iter(made)
    for chunk, taken in enumerate((1, 1, 2, 3, 4, 4)):
        expect(next(stream, None) is not None, "6 chunks for 4 deltas", f"{chunk}")
        expect_equal(deltas.taken, taken, of=f"how many deltas were taken before chunk {chunk}",
                     hint="A reader sees a token when it is there, not when all are.")
    failed = [Delta("r", 0, letters(rng, 2), (97,)),
              Delta("r", 0, finish_reason="error",
                    error=ModelError("this answer failed", "the weights are broken", "none"))]
    got = []
    try:
        for chunk in chat_chunks(failed, new_reply()):
            got.append(chunk)
    except APIError as error:
        expect_equal(error.status, 500, of="the status of the APIError")
    else:
        raise CheckFailure("an APIError when the engine failed", "a stream that ends",
                           "`reply.take` raises it. Who catches it?")
    expect_equal(len(got), 2, of="the number of chunks before the failure")


@check(CHUNKS, points=0.5, public=False, always=(4,))
def any_stream(chat_chunks, rng):
    """Random answers, cut anywhere, with calls and log-probabilities, over several calls."""
    pieces = ["é ", "two", call_text("add"), "<tool_call>{}", "\n", call_text("now"), "<",
              "[1]"]
    for _ in range(6):
        n = int(rng.integers(1, 4))
        answers = []
        for index in range(n):
            text = "".join(pieces[i] for i in rng.integers(0, len(pieces), 3))
            texts = cuts(text, rng, 20) + [""] * int(rng.integers(2))
            answers.append(deltas_of(texts, ["stop", "length"][int(rng.integers(2))], index,
                                     range(0, len(texts), int(rng.integers(1, 3)))))
        deltas = mixed(rng, *answers)
        expect_chunks(chat_chunks, deltas, "", int(rng.integers(1, 4)), n=n, tools=TOOLS,
                      logprobs=True, top_logprobs=2,
                      stream_options={"include_usage": bool(rng.integers(2))},
                      tool_choice=["auto", "none"][int(rng.integers(2))])


# --- validate_request

REQUEST = "server.validate_request"
LIMITS = Limits(("smollm2", "other"), vocab_size=500, max_model_len=100, max_num_seqs=4)
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def outcome_of(function, body: Any, kind: type, limits: Limits) -> Any:
    """What a function makes of a request: its fields and the ignored names, or an error."""
    try:
        got = function(body, kind, limits)
    except APIError as error:
        return error
    expect_returned(got, "a request and the list of ignored names")
    expect(isinstance(got, tuple | list) and len(got) == 2,
           "two results: the request and the list of ignored names", repr(got)[:60])
    request, ignored = got
    expect(type(request).__name__ == kind.__name__, f"a {kind.__name__} as the first result",
           f"a {type(request).__name__}", f"`kind` is the class {kind.__name__}.")
    return request.model_dump(), ignored


def expect_same(validate_request, body: Any, hint: str = "", kind: type = ChatRequest,
                limits: Limits = LIMITS) -> None:
    """Fail unless a request is accepted with these fields, or refused as it should be."""
    with expect_unchanged(body):
        got = outcome_of(validate_request, body, kind, limits)
    right = outcome_of(reference_request, body, kind, limits)
    what = f"the body {body!r}"
    what = what if len(what) < 150 else what[:150] + " …"
    if not isinstance(right, APIError):
        if isinstance(got, APIError):
            raise CheckFailure(f"{what} to be accepted", f"APIError {got.status}: {got}"[:150],
                               hint)
        expect_equal(got[0], right[0], of=f"the request that {what} makes", hint=hint)
        expect_equal(got[1], right[1], of=f"the names that are ignored in {what}", hint=hint)
        return
    if not isinstance(got, APIError):
        raise CheckFailure(f"an APIError {right.status} for {what}", "that it was accepted",
                           hint)
    for name in ("status", "param", "code"):
        expect_equal({name: getattr(got, name)}, {name: getattr(right, name)},
                     of=f"the error for {what}", hint=hint)
    expect(right.param is None or right.param in str(got),
           f"a message that names {right.param}, for {what}", f"{str(got)[:100]!r}", hint)


example_of_validate_request = docstring_example(REQUEST, points=0.5)


@check(REQUEST, points=0.5, public=True)
def accepted_and_ignored(validate_request, rng):
    """A request with its defaults; null is absent;
    what the type does not know is named, sorted."""
    expect_same(validate_request, {"tokens": [1, 2], "user": "me", "model": None},
                "The docstring's example.", DetokenizeRequest)
    word = letters(rng, 4)
    expect_same(validate_request, CHAT | {"temperature": 0, "n": 2, "model": "other"},
                "A whole number is a number.")
    expect_same(validate_request,
                CHAT | {"user": word, "store": True, f"x_{word}": {"a": None}, "metadata": {}},
                "Known names are the fields of `kind`; the others are told, sorted.")
    expect_same(validate_request, CHAT | dict.fromkeys(["n", "stop", "user", "seed", word]),
                "null is absent: neither refused nor ignored.")
    expect_same(validate_request, {"prompt": word, "messages": [], "max_tokens": 0},
                "What is a parameter of chats means nothing for a completion.",
                CompletionRequest)


@check(REQUEST, points=1, public=True)
def what_the_type_refuses(validate_request, rng):
    """Wrong types, values and missing parameters: 400, with the path to the parameter."""
    hint = "`complaint` makes an APIError of pydantic's, if it has the body, too."
    for more in ({"temperature": "1"}, {"n": True}, {"top_p": 1.5}, {"messages": []},
                 {"messages": None}, {"max_tokens": 0}, {"stop": ["a", ""]},
                 {"messages": [{"role": "user"}]}, {"top_logprobs": 25, "logprobs": True},
                 {"messages": [*CHAT["messages"], {"role": "robot", "content": "x"}]},
                 {"stream_options": {"include_usage": "yes"}}, {"tool_choice": "required"},
                 {"stop": int(rng.integers(9))}):
        expect_same(validate_request, CHAT | more, hint)
    expect_same(validate_request, {}, hint)


@check(REQUEST, points=1, public=True)
def what_is_no_request(validate_request, rng):
    """A body that is no object, NaN at any depth, half a character:
    400, whether or not the parameter is known."""
    for body in ([], None, "text", 7, [CHAT]):
        expect_same(validate_request, body, "The body has to be an object.")
    word = letters(rng, 3)
    for more in ({"temperature": math.nan}, {word: {"a": [math.inf]}}, {word: "\ud800"},
                 {"\udc00": 1}, {"metadata": -math.inf},
                 {"messages": [{"role": "user", "content": "\ud83d"}]}):
        expect_same(validate_request, CHAT | more,
                    "`refuse_unwritable` is for every name and its value.")


@check(REQUEST, points=1, public=True)
def what_this_server_cannot_do(validate_request, rng):
    """Models that are not there are 404; n, lengths and ids beyond the limits are 400."""
    word = letters(rng, 5)
    for more in ({"model": word}, {"model": word, "n": 99}, {"model": "smollm2"},
                 {"model": "other"}, {"model": ""}):
        expect_same(validate_request, CHAT | more, "`limits.models` has all names.")
    for more in ({"n": 4}, {"n": 5}, {"max_tokens": 100}, {"max_tokens": 101},
                 {"max_completion_tokens": 1000}, {"logit_bias": {"499": 1}},
                 {"logit_bias": {"3": 1, "500": 1}}, {"stop_token_ids": [0, 499]},
                 {"stop_token_ids": [1, 500, 2]}, {"max_tokens": 50, "stop_token_ids": [777]},
                 {"n": 1, "max_tokens": 1, "max_completion_tokens": 100}):
        expect_same(validate_request, CHAT | more, "The least and the most are allowed, and "
                                                   "every value counts.")
    for prompt in ([0, 499], [1, 2, 500], [[1], [2, 500]], [[1], [2]]):
        expect_same(validate_request, {"prompt": prompt}, "Ids of a prompt are bounded, too.",
                    CompletionRequest)


@check(REQUEST, points=0.5, public=True)
def any_body(validate_request, rng):
    """Bodies with one thing missing, null, huge, or of another type."""
    body = CHAT | {"n": 2, "stop": ["a"], "logit_bias": {"7": 1}, "seed": 3, "user": "me",
                   "stream_options": {"include_usage": True}, "max_tokens": 5}
    chosen = st.lists(st.sampled_from([*body]), max_size=3).map(
        lambda names: CHAT | {name: body[name] for name in names})
    expect_on_all(chosen.flatmap(with_fault), lambda broken: expect_same(
        validate_request, broken, "Who refuses this: the type, the limits, or nobody?"), rng)


@check(REQUEST, points=0.5, public=False, always=(2, 0))
def any_request(validate_request, rng):
    """Random parameters of three kinds of requests, right and wrong ones, and other limits."""
    values = [None, 0, 1, 3, 5, 101, -1, 0.5, True, "", "x", [], ["x"], [1], [700], {},
              {"a": 1}, {"7": 1}, {"700": 1}, math.nan, {"type": "text"},
              [{"role": "user", "content": "x"}]]
    for number in range(60):
        kind = (ChatRequest, CompletionRequest, DetokenizeRequest)[number % 3]
        names = [*kind.model_fields, "user", "store", "é"]
        body = CHAT | {"prompt": "x", "tokens": [1]}
        for place in rng.integers(0, len(names), int(rng.integers(1, 4))):
            body[names[place]] = values[int(rng.integers(len(values)))]
        limits = Limits(("one",), int(rng.integers(2, 800)), int(rng.integers(1, 120)),
                        int(rng.integers(1, 6)))
        expect_same(validate_request, body, "", kind, limits)
    expect_same(validate_request, CHAT | {"model": "two"}, "", limits=LIMITS)


# --- parse_tool_calls

CALLS = "server.tools.parse_tool_calls"
NAMES = {"now", "add"}


def expect_calls(parse_tool_calls, text: str, hint: str = "",
                 names: set[str] = NAMES) -> None:
    """Fail unless the text and the calls of an answer are right."""
    got = parse_tool_calls(text, names)
    content, calls = reference_calls(text, names)
    short = f"{text!r}" if len(text) < 160 else f"{text[:160]!r} …"
    expect_returned(got, f"a text and a list of calls, for {short}")
    expect(isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], str)
           and isinstance(got[1], list | tuple),
           "two results, the text and the list of calls", repr(got)[:60])
    expect(all(hasattr(call, "name") and hasattr(call, "arguments") for call in got[1]),
           "`FunctionCall`s", repr(got[1])[:60])
    expect_equal([(call.name, call.arguments) for call in got[1]],
                 [(call.name, call.arguments) for call in calls],
                 of=f"the calls, as (name, arguments), in {short}", hint=hint)
    if len(content) < 100:
        expect(got[0] == content, f"the text around the calls in {short} to be {content!r}",
               repr(got[0])[:120], hint)
    expect_equal(got[0], content, of=f"the text around the calls in {short}", hint=hint)


def json_call(name: str = "now", arguments: Any = None, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: {} if arguments is None else arguments})


example_of_tools_parse_tool_calls = docstring_example(CALLS, points=0.5)


@check(CALLS, points=1, public=True)
def one_call(parse_tool_calls, rng):
    """A call alone, after a text, before one, in the forms of three families,
    and one that EOS ended."""
    expect_calls(parse_tool_calls,
                 'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
                 "The docstring's example.")
    word = letters(rng, 4)
    call = json_call("add", {"a": [1, {"b": word}], "c": None, "é": "ü"})
    for text in (f"<tool_call>\n{call}\n</tool_call>", f"<tool_call>{call}",
                 f"{word}  \n<tool_call>{call}</tool_call>\n  {word}", call, f" \n{call}\n",
                 f"<|python_tag|>{json_call('add', key='parameters')}", f"[{call}]",
                 f"[TOOL_CALLS] [{call}]", f"{word} [TOOL_CALLS]{call} {word}"):
        expect_calls(parse_tool_calls, text,
                     "A call is where `OPENER` ends and `calls_at` finds one. White space "
                     "around it goes; other text stays.")


@check(CALLS, points=1, public=True)
def several_calls(parse_tool_calls, rng):
    """Several calls in their order, with text before, between and after them."""
    one, two = json_call("add", {"a": int(rng.integers(99))}), json_call("now", {"b": "}"})
    word = letters(rng, 3)
    for text in (f"<tool_call>{one}</tool_call>\n<tool_call>{two}</tool_call>",
                 f"a <tool_call>{two}</tool_call> b <tool_call>{one}</tool_call> c",
                 f"[TOOL_CALLS] [{two}, {one}]", f"[{one}, {two}] and {one}",
                 f" {one} and <tool_call>{two}</tool_call> c ",
                 f" {word} <tool_call>{one}</tool_call> {word} \n",
                 f"{one}<tool_call>{two}", f"x<tool_call>[{one}]</tool_call>[TOOL_CALLS]{two}"):
        expect_calls(parse_tool_calls, text, "The search goes on where a call has ended.")


@check(CALLS, points=1, public=True)
def no_calls(parse_tool_calls, rng):
    """What is no call stays text, marker and all: no JSON, half of it, other functions,
    objects in the middle of a text."""
    word, call = letters(rng, 4), json_call("add")
    for text in ("", "Paris.", f"<tool_call>{call[:-1]}", "<tool_call>", "<tool_call>{}", "{",
                 '{"city": "Paris"}', f"The answer is {call}", f"<tool_call>{word}</tool_call>",
                 f'<tool_call>{{"name": "{word}", "arguments": {{}}}}</tool_call>',
                 f"  <tool_call>\n{word} ", f"{word} \n", '<tool_call>{"name": "now"}',
                 f'[{call}, {json_call("later")}]',
                 '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'):
        expect_calls(parse_tool_calls, text,
                     "`calls_at` finds none here. Then all of it is text, white space too.")


@check(CALLS, points=1, public=True)
def calls_after_failures(parse_tool_calls, rng):
    """A call behind something that looked like one,
    and markers and tags inside of a call's texts."""
    word, call = letters(rng, 4), json_call("add", {"a": "</tool_call> <tool_call>{"})
    for text in (f"<tool_call>{{{word} <tool_call>{call}</tool_call>",
                 f"<tool_call>{json_call('later')}</tool_call><tool_call>{call}</tool_call>.",
                 f"{{{word}}} <tool_call>{call}", f"[{word}] {word}<|python_tag|>{call}{word}",
                 f"{json_call('later')} <tool_call>{call}</tool_call>",
                 f"<tool_call>{call}</tool_call></tool_call>{word}",
                 f"[<tool_call>{call}", f"{{<tool_call>{call}</tool_call>}}"):
        expect_calls(parse_tool_calls, text,
                     "After a failure, the search goes on behind the marker, and what was "
                     "passed is text. A call ends where its JSON ends.")
    expect_calls(parse_tool_calls, call, "No function was offered.", set())


@check(CALLS, points=0.5, public=False, always=(4,))
def any_answer(parse_tool_calls, rng):
    """Random answers of markers, calls and their pieces; long ones, deep ones."""
    pieces = [*MARKERS, "</tool_call>", "<tool_", "{", "}", "[", "]", '"', "Paris", "é", ",",
              json_call("add", {"a": '"}'}), json_call("later"), f"[{json_call('now')}]",
              json_call("now", key="parameters")]
    for _ in range(150):
        parts = [pieces[i] for i in rng.integers(0, len(pieces), int(rng.integers(1, 9)))]
        spaces = [["", " ", "\n"][i] if not part.startswith(MARKERS) else ""
                  for part, i in zip(parts, rng.integers(0, 3, len(parts)))]
        expect_calls(parse_tool_calls,
                     "".join(part + space for part, space in zip(parts, spaces)))
    for text in ("<tool_call>" + "[" * 3000, f"{'a ' * 3000}<tool_call>{json_call('now')}",
                 "<tool_call>" * 200 + json_call("add")):
        expect_calls(parse_tool_calls, text)
