"""Tool calls: how a model learns of functions, and how calls are found in what it writes.

A model writes text. That it wants to call a function shows in a form that it was trained on:

- Hermes, Qwen, SmolLM: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`,
- Llama 3: an answer that is only `{"name": ..., "parameters": {...}}`, perhaps after
  `<|python_tag|>`,
- Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`.

Special tokens are no part of the text that a reader sees, so Llama's and Mistral's markers may
be gone: an answer that begins with such an object or list counts too. Only functions that were
offered can be called; everything else stays text, and so does a call whose JSON is wrong or
incomplete. Hence a free call is sent once it is complete. A call that a grammar enforces
(`forced_grammar`) cannot be wrong, and its arguments are sent as they come; cut off by the
length, it stays a call with incomplete arguments.

Left out on purpose: Mistral's newer `[TOOL_CALLS]name[ARGS]{...}`, calls in Python's syntax.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gearworks.errors import ModelError
from gearworks.server.request_types import ChatRequest, CompletionRequest

MARKERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
CLOSER = "</tool_call>"
_MARKER = "(?:" + "|".join(map(re.escape, MARKERS)) + r")\s*"
_LATER_OPENER = re.compile(_MARKER)
_OPENER = re.compile(r"(?:\A\s*)?" + _MARKER + r"|\A\s*(?=[\[{])")
_CLOSER = re.compile(r"\s*(?:" + re.escape(CLOSER) + r"\s*)?")


@dataclass(frozen=True)
class FunctionCall:
    """A call as a model wrote it. arguments: a JSON object, as text."""

    name: str
    arguments: str


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


# strict=False: models break lines inside of strings
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def parse_tool_calls(text: str, names: Collection[str]) -> tuple[str, list[FunctionCall]]:
    """Find the calls in a whole answer.

    names: of the functions that were offered. Returns the text around the calls, and the calls
    in their order. A call is a JSON object with a "name" and "arguments", or "parameters", that
    are an object; or a list of such objects. It stands behind one of `MARKERS`, or where the
    answer begins; a `</tool_call>` behind it belongs to it, and so does the white space around
    all that. What is no such JSON, or calls a function that is not among the names, stays text
    with its marker, and the search goes on behind the marker.

    >>> parse_tool_calls('Let me see.\\n<tool_call>\\n{"name": "now", "arguments": {}}\\n'
    ...                  '</tool_call>', {"now"})
    ('Let me see.', [FunctionCall(name='now', arguments='{}')])
    >>> parse_tool_calls('{"name": "now", "parameters": {"zone": "CET"}}', {"now"})
    ('', [FunctionCall(name='now', arguments='{"zone": "CET"}')])
    >>> parse_tool_calls('<tool_call>{"name": "now", "argu', {"now"})
    ('<tool_call>{"name": "now", "argu', [])
    """
    content, calls, at = "", [], 0
    while opener := _OPENER.search(text, at):
        found, end = _calls_at(text, opener.end(), names)
        if found:
            content += text[at:opener.start()].rstrip()
            at = _CLOSER.match(text, end).end()
        else:
            end = max(opener.end(), 1)
            content += text[at:end]
            at = end
        calls += found
    return content + text[at:], calls


def _calls_at(text: str, start: int, names: Collection[str]) -> tuple[list[FunctionCall], int]:
    """The calls that the JSON value at a place stands for, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        return [_call(each, names) for each in (value if isinstance(value, list)
                                                else [value])], end
    except (ValueError, RecursionError):
        return [], start


def _call(value: Any, names: Collection[str]) -> FunctionCall:
    """The call that a JSON value stands for. Raises ValueError where it is none."""
    if not isinstance(value, dict) or value.get("name") not in list(names):
        raise ValueError("it calls no function that was offered")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("its arguments are no object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:                              # half a surrogate pair
        text = json.dumps(arguments)
    return FunctionCall(value["name"], text)


class ChatText:
    """Cuts the text of an answer, which comes in pieces, into deltas of a chat's chunks.

    Here all of it is content. calls: how many tool calls there were.
    """

    calls = 0

    def push(self, text: str) -> list[dict[str, Any]]:
        """Take the next piece of text; returns the deltas that are certain now."""
        return [{"content": text}] if text else []

    def finish(self) -> list[dict[str, Any]]:
        """The text has ended; returns the deltas of what was held back."""
        return []

    def _begin(self, name: str) -> dict[str, Any]:
        """A call's first delta. Mistral's templates want ids of nine letters and digits."""
        self.calls += 1
        return {"tool_calls": [{"index": self.calls - 1, "id": uuid4().hex[:9],
                                "type": "function",
                                "function": {"name": name, "arguments": ""}}]}

    def _go_on(self, arguments: str) -> dict[str, Any]:
        """The next piece of the last call's arguments."""
        return {"tool_calls": [{"index": self.calls - 1,
                                "function": {"arguments": arguments}}]}


class FreeCalls(ChatText):
    """Finds what `parse_tool_calls` finds, wherever the pieces end, as early as it is certain.

    What may become a call is held back; a whole call comes as two deltas, the second with all
    arguments. most: of several calls, only so many are sent.
    """

    def __init__(self, names: Collection[str], most: int | None = None):
        self._names, self._most = names, most
        self._held = ""
        self._opener = _OPENER                              # until something was let through
        self._end = JSONEnd(0)                              # of the value that has begun
        self._called = False                                # a call ends where `_held` begins

    def push(self, text: str) -> list[dict[str, Any]]:
        """See `ChatText.push`."""
        self._held += text
        return self._decide(ended=False)

    def finish(self) -> list[dict[str, Any]]:
        """See `ChatText.finish`."""
        return self._decide(ended=True)

    def _decide(self, ended: bool) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        while self._held:
            if self._called:
                rest = self._held[_CLOSER.match(self._held).end():]
                if not ended and CLOSER.startswith(rest):   # also where there is no rest
                    break
                self._held, self._called = rest, False
                continue
            opener = self._opener.search(self._held)
            if opener is None:
                return deltas + self._let_through(len(self._held) if ended else
                                                  self._certain())
            before = len(self._held[:opener.start()].rstrip())
            if not ended and not self._is_whole(opener.end()):
                return deltas + self._let_through(before)
            calls, end = _calls_at(self._held, opener.end(), self._names)
            if calls:
                deltas += self._let_through(before)
                self._held, self._called = self._held[end - before:], True
                self._opener, self._end = _LATER_OPENER, JSONEnd(0)
                deltas += self._send(calls)
            else:
                deltas += self._let_through(max(opener.end(), 1))
        return deltas

    def _certain(self) -> int:
        """How much of what is held, in which no call begins, cannot belong to one."""
        most = max(map(len, MARKERS)) - 1
        begun = next((length for length in range(min(most, len(self._held)), 0, -1)
                      if any(marker.startswith(self._held[-length:]) for marker in MARKERS)), 0)
        return len(self._held[:len(self._held) - begun].rstrip())

    def _is_whole(self, start: int) -> bool:
        """Whether all is there that decides if a call begins at a place."""
        if start == len(self._held):
            return False
        if self._held[start] not in "{[":
            return True
        if self._end.start != start:
            self._end = JSONEnd(start)
        return self._end.is_in(self._held)

    def _let_through(self, length: int) -> list[dict[str, Any]]:
        if not length:
            return []
        content, self._held = self._held[:length], self._held[length:]
        self._opener, self._end = _LATER_OPENER, JSONEnd(0)
        return [{"content": content}]

    def _send(self, calls: Sequence[FunctionCall]) -> list[dict[str, Any]]:
        left = len(calls) if self._most is None else self._most - self.calls
        return [delta for call in calls[:left]
                for delta in (self._begin(call.name), self._go_on(call.arguments))]


class JSONEnd:
    """Looks for the end of the object or list that begins at `start` of a text that grows.
    What it looks at once, it does not look at again."""

    _SYNTAX = re.compile(r'["\\{}\[\]]')

    def __init__(self, start: int):
        self.start, self.end = start, 0
        self._depth = 0
        self._quoted = False
        self._next = start

    def is_in(self, text: str) -> bool:
        """Whether the text, which may only have grown, holds the end; `end` says where."""
        while not self.end and (found := self._SYNTAX.search(text, self._next)):
            self._next = found.end()
            if self._quoted:
                self._quoted = found[0] != '"'
                self._next += found[0] == "\\"            # nor does what it escapes count
            elif found[0] == '"':
                self._quoted = True
            elif found[0] != "\\":
                self._depth += 1 if found[0] in "{[" else -1
                self.end = 0 if self._depth else self._next
        self._next = max(self._next, len(text))
        return bool(self.end)


_FORCED_HEAD = re.compile(r'\s*<tool_call>\n\{"name": "([^"]*)", "arguments": ')
_FORCED_TAIL = "}\n</tool_call>"


class ForcedCalls(ChatText):
    """Takes the calls that `forced_grammar` allows, and sends their arguments as they come."""

    def __init__(self) -> None:
        self._held = ""
        self._end: JSONEnd | None = None                    # of the arguments
        self._sent = 0                                      # of what is held

    def push(self, text: str) -> list[dict[str, Any]]:
        """See `ChatText.push`."""
        self._held += text
        deltas: list[dict[str, Any]] = []
        while True:
            if self._end is None:
                head = _FORCED_HEAD.match(self._held)
                if head is None:
                    return deltas
                deltas.append(self._begin(head[1]))
                self._held = self._held[head.end():]
                self._end, self._sent = JSONEnd(0), 0
            whole = self._end.is_in(self._held)
            stop = self._end.end if whole else len(self._held)
            if stop > self._sent:
                deltas.append(self._go_on(self._held[self._sent:stop]))
                self._sent = stop
            if not whole or len(self._held) < stop + len(_FORCED_TAIL):
                return deltas
            self._held, self._end = self._held[stop + len(_FORCED_TAIL):], None

    def finish(self) -> list[dict[str, Any]]:
        """See `ChatText.finish`: a call that was cut off before its name stays text."""
        rest = self._held if self._end is None else ""
        self._held = ""
        return [{"content": rest}] if rest else []


def chat_text(request: ChatRequest | CompletionRequest) -> ChatText:
    """What cuts the text of one of the answers to a request."""
    if not isinstance(request, ChatRequest) or not request.offered_tools:
        return ChatText()
    if request.forced_tools:
        return ForcedCalls()
    return FreeCalls([tool["function"]["name"] for tool in request.offered_tools],
                     most=1 if request.parallel_tool_calls is False else None)


def forced_grammar(tools: Sequence[Mapping[str, Any]], several: bool) -> str:
    """The grammar, for `TokenGrammar`, of calls of some of these tools, in Hermes' form.

    several: whether there may be up to eight of them. Raises ModelError as `arguments_schema`;
    the schemas are taken to have passed `json_grammar`, which complains better than a grammar.
    """
    rules = []
    for place, tool in enumerate(tools):
        function = tool["function"]
        schema = arguments_schema(function.get("parameters"))
        head = json.dumps(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": ')
        written = json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})
        rules += [f"call{place}: {head} arguments{place} {json.dumps(_FORCED_TAIL)}",
                  f"arguments{place}: %json {written}"]
    start = 'start: call ("\\n" call){0,7}' if several else "start: call"
    call = "call: " + " | ".join(f"call{place}" for place in range(len(tools)))
    return "\n".join([start, call, *rules])


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema of a function's arguments, which are always an object.
    Without parameters it is empty. Raises ModelError for the schema of something else."""
    if not parameters:
        return {"type": "object", "additionalProperties": False}
    kind = parameters.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise ModelError("cannot call this function",
                         f"its parameters are of type {kind!r:.80}",
                         'describe them as {"type": "object", "properties": {...}}')
    return {**parameters, "type": "object"}


SYSTEM_TEXT = """\
You can call functions. Each line between <tools> and </tools> describes one, with the JSON \
schema of its arguments:
<tools>
{tools}
</tools>
To call a function, answer in this form, and write nothing else:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of an argument": "value"}}}}
</tool_call>
The result comes between <tool_response> and </tool_response>. Call a function only if it \
helps; else answer in words."""


def system_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a model is told about functions where its chat template says nothing about them."""
    return SYSTEM_TEXT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False)
                                              for tool in tools))


def in_words(messages: Sequence[Mapping[str, Any]],
             tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A conversation with tools for a template that knows only texts, in Hermes' form.

    The tools are described at the end of the system message, which is added if there is none.
    Calls of the assistant become text, and results become messages of the user.
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        message = dict(message)
        content = [message.get("content") or ""]
        for call in message.pop("tool_calls", None) or ():
            content.append(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n"
                           "</tool_call>")
        if message["role"] == "tool":
            message = {"role": "user"}
            content = [f"<tool_response>\n{content[0]}\n</tool_response>"]
        plain.append(message | {"content": "\n".join(filter(None, content))})
    if tools:
        if plain[0]["role"] != "system":
            plain.insert(0, {"role": "system", "content": ""})
        content = filter(None, (plain[0]["content"], system_text(tools)))
        plain[0]["content"] = "\n\n".join(content)
    return plain
