"""From the text of an answer, which comes in pieces, to deltas of a chat's chunks.

What may still become a tool call is held back, everything else goes on at once: `tools` says
what a call looks like, and how free calls differ from those that a grammar enforces.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

from gearworks.server.request_types import ChatRequest, CompletionRequest
from gearworks.server.tools import (AFTER_CALL, CLOSER, FORCED_TAIL, LATER_OPENER, MARKERS,
                                    OPENER, FunctionCall, calls_at, parse_tool_calls)

_FORCED_HEAD = re.compile(r'\s*<tool_call>\n\{"name": "([^"]*)", "arguments": ')


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
        self._opener = OPENER                              # until something was let through
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
                rest = self._held[AFTER_CALL.match(self._held).end():]
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
            _, end = calls_at(self._held, opener.end(), self._names)
            _, calls = parse_tool_calls(self._held[before:end], self._names)
            if calls:
                deltas += self._let_through(before)
                self._held, self._called = self._held[end - before:], True
                self._opener, self._end = LATER_OPENER, JSONEnd(0)
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
        self._opener, self._end = LATER_OPENER, JSONEnd(0)
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
            if not whole or len(self._held) < stop + len(FORCED_TAIL):
                return deltas
            self._held, self._end = self._held[stop + len(FORCED_TAIL):], None

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
    return FreeCalls([tool["function"]["name"] for tool in request.usable_tools],
                     most=1 if request.parallel_tool_calls is False else None)
