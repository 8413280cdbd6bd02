"""A response of the Responses API, as the events of its stream and as one object.

Source: OpenAI's API reference, "Responses: streaming events".
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any
from uuid import uuid4

from gearworks.server.api_error import APIError
from gearworks.server.protocol import chat_chunks
from gearworks.server.reply import Reply
from gearworks.server.responses import ResponsesRequest
from gearworks.serving.request import Delta

Event = dict[str, Any]


class ResponseReply:
    """One response while it grows.

    response: OpenAI's object; it is whole when its status is no longer "in_progress". Events
    have a "type", which is also their name on the wire, and are numbered.
    """

    def __init__(self, request: ResponsesRequest, chat: Reply):
        """chat: of the request that `responses.chat_request` made."""
        self._chat = chat
        self._events = 0
        self._open: dict[str, Any] | None = None            # the item that may still grow
        sent = request.model_dump(by_alias=True, include={"text", "tool_choice"})
        self.response: dict[str, Any] = {
            "id": f"resp_{uuid4().hex}", "object": "response", "created_at": int(time.time()),
            "status": "in_progress", "background": False, "error": None,
            "incomplete_details": None, "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens, "metadata": request.metadata or {},
            "model": chat.head["model"], "output": [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id, "store": request.store,
            "temperature": request.temperature, "tool_choice": sent["tool_choice"] or "auto",
            "text": sent["text"] or {"format": {"type": "text"}}, "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0, "top_p": request.top_p,
            "truncation": "disabled", "usage": None}

    def begin(self) -> Iterator[Event]:
        """The events before the first token."""
        for status in ("created", "in_progress"):
            yield self._event(f"response.{status}", response=self._snapshot())

    def events(self, deltas: Iterable[Delta]) -> Iterator[Event]:
        """The events for what the engine has added, up to the response's last.
        Raises APIError where the engine failed: `fail` ends the stream then."""
        for chunk in chat_chunks(deltas, self._chat):
            for choice in chunk["choices"]:
                delta, logprobs = choice["delta"], choice["logprobs"]
                if delta.get("content") or logprobs:
                    yield from self._write(delta.get("content") or "",
                                           (logprobs or {}).get("content") or [])
                for call in delta.get("tool_calls", ()):
                    yield from self._call(call)
                if choice["finish_reason"]:
                    yield from self._finish(choice["finish_reason"])

    def fail(self, error: APIError) -> Iterator[Event]:
        """The last event of a response that could not be finished."""
        self.response["status"] = "failed"
        self.response["error"] = {"code": "server_error", "message": error.message}
        yield self._event("response.failed", response=self._snapshot())

    def _write(self, text: str, logprobs: list[Mapping[str, Any]]) -> Iterator[Event]:
        """Some more of a message."""
        if self._open is None or self._open["type"] != "message":
            if not text:                                    # tokens of a call
                return
            yield from self._open_message()
        part = self._open["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        yield self._item_event("response.output_text.delta", content_index=0, delta=text,
                               logprobs=logprobs)

    def _open_message(self) -> Iterator[Event]:
        yield from self._close()
        yield from self._add({"id": f"msg_{uuid4().hex}", "type": "message",
                              "role": "assistant", "status": "in_progress", "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._item_event("response.content_part.added", content_index=0,
                               part=part | {"logprobs": []})
        self._open["content"].append(part)

    def _call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """A call's beginning, or some more of its arguments."""
        if "id" in call:
            yield from self._close()
            yield from self._add({"id": f"fc_{uuid4().hex}", "type": "function_call",
                                  "status": "in_progress", "call_id": call["id"],
                                  "name": call["function"]["name"], "arguments": ""})
        piece = call["function"]["arguments"]
        if piece:
            self._open["arguments"] += piece
            yield self._item_event("response.function_call_arguments.delta", delta=piece)

    def _add(self, item: dict[str, Any]) -> Iterator[Event]:
        self.response["output"].append(item)
        self._open = item
        yield self._event("response.output_item.added", item=deepcopy(item),
                          output_index=len(self.response["output"]) - 1)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        """The events that end the open item, if there is one."""
        item = self._open
        if item is None:
            return
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            yield self._item_event("response.output_text.done", content_index=0,
                                   text=part["text"], logprobs=part["logprobs"])
            yield self._item_event("response.content_part.done", content_index=0, part=part)
        else:
            yield self._item_event("response.function_call_arguments.done",
                                   arguments=item["arguments"])
        yield self._event("response.output_item.done", item=item,
                          output_index=len(self.response["output"]) - 1)
        self._open = None

    def _finish(self, reason: str) -> Iterator[Event]:
        cut = reason == "length"
        if not self.response["output"]:
            yield from self._open_message()
        yield from self._close("incomplete" if cut else "completed")
        usage = self._chat.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {"input_tokens": usage["prompt_tokens"],
                      "input_tokens_details": {"cached_tokens": cached,
                                               "cache_write_tokens": 0},
                      "output_tokens": usage["completion_tokens"],
                      "output_tokens_details": {"reasoning_tokens": 0},
                      "total_tokens": usage["total_tokens"]}}
        yield self._event(f"response.{self.response['status']}", response=self._snapshot())

    def _snapshot(self) -> dict[str, Any]:
        return self.response | {"output": list(self.response["output"])}

    def _item_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._open["id"],
                           output_index=len(self.response["output"]) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **fields}


def whole_response(deltas: Iterable[Delta], reply: ResponseReply) -> dict[str, Any]:
    """OpenAI's `response` object, from all deltas of a request. Raises APIError."""
    for _ in reply.events(deltas):
        pass
    return reply.response
