"""OpenAI's protocol: what is accepted, and what goes back, whole or as a stream of chunks.

Everything here is a function of its arguments; `app` connects it with HTTP, and
`engine_request` with the model. A whole response is made of the chunks of its stream, so the
two cannot differ.
Source: OpenAI's API reference, "Chat completions" and "Completions"; "Server-sent events" in
the HTML standard.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from gearworks.server.api_error import APIError
from gearworks.server.reply import Reply, joined
from gearworks.server.request_types import Limits, Object
from gearworks.serving.request import Delta

Kind = TypeVar("Kind", bound=Object)


def validate_request(body: Any, kind: type[Kind], limits: Limits) -> tuple[Kind, list[str]]:
    """Check a request, and say which of its parameters mean nothing here.

    body: JSON, as `json.loads` gives it. kind: the pydantic type of this request, such as
    `ChatRequest`. Returns the request, as `kind.model_validate` makes it, and the sorted names
    in the body that are none of the type's fields; null counts as absent.

    Raises APIError(status, message, param, code) for what is wrong, in this order:
    - a body that is no object (a Mapping): 400, "invalid_type", of no parameter;
    - a name or a value that could not be sent on: `refuse_unwritable` raises it;
    - what the type refuses: pydantic's ValidationError becomes `complaint(error, body)`;
    - a model, if the request names one, that is not among `limits.models`: 404,
      "model_not_found";
    - a number that this server cannot take: 400, "invalid_value". `request.bounded(limits)`
      gives what is bounded, one by one: (parameter, value, least, most).

    >>> from gearworks.server.request_types import DetokenizeRequest
    >>> limits = Limits(("tiny",), vocab_size=10, max_model_len=8, max_num_seqs=2)
    >>> body = {"tokens": [1, 2], "user": "me", "model": None}
    >>> request, ignored = validate_request(body, DetokenizeRequest, limits)
    >>> request.tokens, request.model, ignored
    ([1, 2], None, ['user'])
    >>> validate_request({"tokens": [99]}, DetokenizeRequest, limits)
    Traceback (most recent call last):
        ...
    gearworks.server.api_error.APIError: tokens is 99; it can be from 0 to 9 here.
    """
    if not isinstance(body, Mapping):
        raise APIError(400, "The body has to be a JSON object.", code="invalid_type")
    for name, value in body.items():
        refuse_unwritable(name, value)
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        raise complaint(error, body) from None
    if request.model is not None and request.model not in limits.models:
        raise APIError(404, f"The model {request.model[:100]!r} does not exist. This server "
                            f"has {', '.join(limits.models)}.", "model", "model_not_found")
    for name, value, least, most in request.bounded(limits):
        if not least <= value <= most:
            raise APIError(400, f"{name} is {value}; it can be from {least} to {most} here.",
                           name, "invalid_value")
    return request, sorted(name for name, value in body.items()
                           if name not in kind.model_fields and value is not None)


def refuse_unwritable(name: str, value: Any) -> None:
    """Raise APIError for a value that could not be sent on: NaN, half a surrogate pair, ..."""
    try:
        name.encode()
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        why = "it holds half a surrogate pair, which is no character"
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError:
        why = "it holds a number that JSON does not have, or an endless one"
    else:
        return
    shown = ascii(name)[1:-1][:100]
    raise APIError(400, f"{shown} cannot be used: {why}.", shown, "invalid_value")


def complaint(error: ValidationError, body: Any) -> APIError:
    """What pydantic found first, with the parameter's path as OpenAI writes it."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    paths = [_path(each, body) for each in found]
    # Of a union's alternatives, that which was understood furthest is what was meant (a list
    # that is only too long was right so far); and what is there and wrong comes before what is
    # missing
    path, chosen = max(((path, each) for path, each in zip(paths, found)
                        if each["loc"][:1] == found[0]["loc"][:1]),
                       key=lambda pair: (pair[1]["type"] == "too_long",
                                         pair[0].count(".") + pair[0].count("["),
                                         pair[1]["type"] != "missing"))
    meant = ([chosen] if chosen["type"] == "too_long" else
             [each for each, other in zip(found, paths) if other == path])
    reasons = dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in meant)
    code = "missing_required_parameter" if meant[0]["type"] == "missing" else "invalid_value"
    return APIError(400, f"{path or 'The body'} cannot be used: {'; or: '.join(reasons)}.",
                    path or None, code)


def _path(found: Mapping[str, Any], body: Any) -> str:
    """messages[0].content: those steps of pydantic's location that lead into the body."""
    path, value, *steps = "", body, *found["loc"]
    for place, step in enumerate(steps):
        absent = place == len(steps) - 1 and found["type"] in ("missing", "value_error")
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, Mapping) and (step in value or absent):
            path, value = f"{path}.{step}".lstrip("."), value.get(step)
        if path == "logit_bias":                            # its keys are the client's
            break
    return path[:200]


def sse_event(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    r"""One server-sent event, ready for the wire: UTF-8.

    data: an object, sent as JSON on one line, with no spaces between its parts and every
    character as it is; or a text without line breaks, sent as it is. event: its type, for
    streams that name them, on a line of its own before the data. An empty line ends the event.
    Source: "Server-sent events" in the HTML standard.

    >>> sse_event("[DONE]")
    b'data: [DONE]\n\n'
    >>> sse_event({"a": "é\n"})
    b'data: {"a":"\xc3\xa9\\n"}\n\n'
    >>> sse_event({}, "response.created")
    b'event: response.created\ndata: {}\n\n'
    """
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False,
                                                         separators=(",", ":"))
    kind = f"event: {event}\n" if event else ""
    return f"{kind}data: {text}\n\n".encode()


def chat_chunks(deltas: Iterable[Delta], reply: Reply) -> Iterator[dict[str, Any]]:
    """OpenAI's `chat.completion.chunk` objects for what the engine has added.

    deltas: of all answers to one request, which may interleave; each is answered before the
    next is taken. Another call goes on where this one ended.

    `reply.take(delta)` counts a delta, and returns the answer that it belongs to, of which
    `answer.deltas` have come with this one. `chat_chunk(reply, answer.number, ...)` makes a
    chunk for a piece of it. An answer comes in these pieces:

    - {"role": "assistant", "content": ""}, once, at its beginning;
    - those of `answer.text.push(delta.text)`, and with its last delta, which has a finish
      reason, those of `answer.text.finish()`, too. The delta's log-probabilities, if any, which
      `answer.chat_logprobs(delta)` gives, go with the first of these pieces, or with
      {"content": ""} if there are none;
    - {}, at its end, and only this chunk has a finish reason: the delta's, but "tool_calls"
      where the model stopped ("stop") after `answer.text.calls` calls, not 0.

    When `reply.done`, and `reply.request.include_usage`, a chunk without choices comes last,
    `chunk(reply, "chat.completion.chunk", [])`, with `reply.usage()` as its "usage".
    Raises APIError where the engine failed, as `reply.take` does.

    >>> from gearworks.server.request_types import ChatRequest
    >>> from gearworks.serving.request import Request
    >>> question = ChatRequest(messages=[{"role": "user", "content": "Hi"}])
    >>> reply = Reply(question, [Request([7], id="r")], tokenizer=None, model="tiny")
    >>> deltas = [Delta("r", 0, "Hel"), Delta("r", 0, "lo", finish_reason="length")]
    >>> chunks = [each["choices"][0] for each in chat_chunks(deltas, reply)]
    >>> [chunk["delta"] for chunk in chunks]
    [{'role': 'assistant', 'content': ''}, {'content': 'Hel'}, {'content': 'lo'}, {}]
    >>> [chunk["finish_reason"] for chunk in chunks]
    [None, None, None, 'length']
    """
    for delta in deltas:
        answer = reply.take(delta)
        if answer.deltas == 1:
            yield chat_chunk(reply, answer.number, {"role": "assistant", "content": ""})
        news = answer.text.push(delta.text)
        if delta.finish_reason is not None:
            news += answer.text.finish()
        logprobs = answer.chat_logprobs(delta)
        if logprobs is not None and not news:
            news = [{"content": ""}]
        for piece in news:
            yield chat_chunk(reply, answer.number, piece, logprobs)
            logprobs = None
        if delta.finish_reason is not None:
            called = answer.text.calls > 0 and delta.finish_reason == "stop"
            yield chat_chunk(reply, answer.number, {},
                             finish_reason="tool_calls" if called else delta.finish_reason)
    if reply.done and reply.request.include_usage:
        yield chunk(reply, "chat.completion.chunk", []) | {"usage": reply.usage()}


def completion_chunks(deltas: Iterable[Delta], reply: Reply) -> Iterator[dict[str, Any]]:
    """OpenAI's `text_completion` objects for what the engine has added, as `chat_chunks`.
    The prompt, if it is to be echoed, comes with an answer's first chunk."""
    for delta in deltas:
        answer = reply.take(delta)
        text, logprobs = delta.text, answer.completion_logprobs(delta)
        if answer.deltas == 1:
            text = answer.prompt + text
        if text or logprobs or delta.finish_reason:
            yield chunk(reply, "text_completion", [
                {"index": answer.number, "text": text, "logprobs": logprobs,
                 "finish_reason": delta.finish_reason}])
    if reply.done and reply.request.include_usage:
        yield chunk(reply, "text_completion", []) | {"usage": reply.usage()}


def chunk(reply: Reply, kind: str, choices: list) -> dict[str, Any]:
    """What every chunk has: the head, its kind and choices, and, if asked for, no usage yet."""
    usage = {"usage": None} if reply.request.include_usage else {}
    return reply.head | {"object": kind, "choices": choices} | usage


def chat_chunk(reply: Reply, number: int, piece: Mapping[str, Any], logprobs: Any = None,
               finish_reason: str | None = None) -> dict[str, Any]:
    """The chunk of a chat for a piece, OpenAI's "delta", of the answer with this number."""
    return chunk(reply, "chat.completion.chunk", [
        {"index": number, "delta": piece, "logprobs": logprobs,
         "finish_reason": finish_reason}])


def chat_completion(deltas: Iterable[Delta], reply: Reply) -> dict[str, Any]:
    """OpenAI's `chat.completion` object, from all deltas of a request."""
    choices = []
    for mine in _by_choice(chat_chunks(deltas, reply)):
        pieces = [choice["delta"] for choice in mine]
        calls: list[dict[str, Any]] = []
        for piece in (call for piece in pieces for call in piece.get("tool_calls", ())):
            if "id" in piece:
                calls.append({"id": piece["id"], "type": "function",
                              "function": dict(piece["function"])})
            else:
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
        content = "".join(piece.get("content") or "" for piece in pieces)
        message = {"role": "assistant", "content": content if content or not calls else None,
                   "refusal": None} | ({"tool_calls": calls} if calls else {})
        choices.append({"index": mine[0]["index"], "message": message,
                        "logprobs": joined(choice["logprobs"] for choice in mine),
                        "finish_reason": mine[-1]["finish_reason"]})
    return reply.head | {"object": "chat.completion", "choices": choices,
                         "usage": reply.usage()}


def completion(deltas: Iterable[Delta], reply: Reply) -> dict[str, Any]:
    """OpenAI's `text_completion` object, from all deltas of a request."""
    choices = [{"index": mine[0]["index"], "text": "".join(choice["text"] for choice in mine),
                "logprobs": joined(choice["logprobs"] for choice in mine),
                "finish_reason": mine[-1]["finish_reason"]}
               for mine in _by_choice(completion_chunks(deltas, reply))]
    return reply.head | {"object": "text_completion", "choices": choices,
                         "usage": reply.usage()}


def _by_choice(chunks: Iterable[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """The choices of all chunks, one list for each index, in their order."""
    found: dict[int, list] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return [found[index] for index in sorted(found)]


def model_list(limits: Limits, created: int) -> dict[str, Any]:
    """The response of GET /v1/models. created: a Unix time."""
    return {"object": "list",
            "data": [{"id": name, "object": "model", "created": created,
                      "owned_by": "gearworks", "max_model_len": limits.max_model_len}
                     for name in limits.models]}
