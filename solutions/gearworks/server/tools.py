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

from gearworks.errors import ModelError

MARKERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
CLOSER = "</tool_call>"
# Where a call may begin: behind a marker, and where the answer begins. Only the white space of
# the very beginning is looked at here: before a later marker, a long run of it would be looked
# at again for each of its characters.
_MARKER = "(?:" + "|".join(map(re.escape, MARKERS)) + r")\s*"
LATER_OPENER = re.compile(_MARKER)
OPENER = re.compile(r"(?:\A\s*)?" + _MARKER + r"|\A\s*(?=[\[{])")
AFTER_CALL = re.compile(r"\s*(?:" + re.escape(CLOSER) + r"\s*)?")


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
    in their order.

    A call may begin behind one of `MARKERS`, and where the answer begins: `OPENER` finds these
    places, with the marker and the white space behind it. `calls_at(text, place, names)` reads
    the JSON there, and gives the calls that it stands for and its end: no calls, if it is not
    JSON, or no call of one of the names, nor a list of such calls. `AFTER_CALL` matches what
    belongs to a call behind its end. The white space before a call's marker goes, too. What is
    no call stays text, with its marker, and the search goes on behind the marker.

    >>> parse_tool_calls('Let me see.\\n<tool_call>\\n{"name": "now", "arguments": {}}\\n'
    ...                  '</tool_call>', {"now"})
    ('Let me see.', [FunctionCall(name='now', arguments='{}')])
    >>> parse_tool_calls('{"name": "now", "parameters": {"zone": "CET"}}', {"now"})
    ('', [FunctionCall(name='now', arguments='{"zone": "CET"}')])
    >>> parse_tool_calls('<tool_call>{"name": "now", "argu', {"now"})
    ('<tool_call>{"name": "now", "argu', [])
    """
    content, calls, at = "", [], 0
    while opener := OPENER.search(text, at):
        found, end = calls_at(text, opener.end(), names)
        if found:
            content += text[at:opener.start()].rstrip()
            at = AFTER_CALL.match(text, end).end()
        else:
            end = max(opener.end(), 1)
            content += text[at:end]
            at = end
        calls += found
    return content + text[at:], calls


def calls_at(text: str, start: int, names: Collection[str]) -> tuple[list[FunctionCall], int]:
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


FORCED_TAIL = "}\n</tool_call>"


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
        rules += [f"call{place}: {head} arguments{place} {json.dumps(FORCED_TAIL)}",
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
