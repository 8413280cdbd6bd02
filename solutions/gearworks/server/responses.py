"""The Responses API in terms of a chat: what it asks for, and what it remembers.

Input items become messages; from there on a response is a chat with one answer, whose chunks
`response_events` writes in this API's form. Tools are functions only. A response is kept, if
`store` is not false, so that a later one can name it in `previous_response_id`; the store is
bounded, and what was used longest ago is forgotten first.

Left out on purpose: conversations, background responses, reusable prompts, hosted tools;
reasoning items of other models are skipped.
Source: OpenAI's API reference, "Responses".
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import (AfterValidator, BeforeValidator, Discriminator, Field, Tag,
                      WithJsonSchema, WrapValidator)

from gearworks.server.api_error import APIError
from gearworks.server.protocol import validate_request
from gearworks.server.request_types import (MOST_MESSAGES, MOST_TOOLS, WHOLE, Bounded,
                                            ChatRequest, Function, JSONObjectFormat, Limits,
                                            LongList, NamedSchema, Object, SamplingRequest,
                                            TextFormat, TokenCount, as_sent)


MOST_METADATA = 16                  # OpenAI's bound


class InputText(Object):
    """A part of a message's content."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(Object):
    """A message of anybody, the assistant's earlier ones included."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | LongList[InputText]


class CallItem(Object):
    """A call that the model made before."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class OutputItem(Object):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | LongList[InputText]


class ReasoningItem(Object):
    """Another model's thoughts, which mean nothing to this one."""

    type: Literal["reasoning"]


def _kind(item: Any) -> Any:
    return item.get("type") or "message" if isinstance(item, Mapping) else "message"


InputItem = Annotated[Annotated[InputMessage, Tag("message")]
                      | Annotated[CallItem, Tag("function_call")]
                      | Annotated[OutputItem, Tag("function_call_output")]
                      | Annotated[ReasoningItem, Tag("reasoning")], Discriminator(_kind)]


class FunctionTool(Function):
    """A function that the model may call; chats have the same, one level deeper."""

    type: Literal["function"]


class NamedFunction(Object):
    """The function that the model has to call."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Object):
    """The functions that the model may call; chats have the same, one level deeper."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MOST_TOOLS)]


class SchemaFormat(NamedSchema):
    """JSON that a schema accepts; chats have the same, one level deeper."""

    type: Literal["json_schema"]


class TextSettings(Object):
    """The form of the text."""

    format: Annotated[TextFormat | JSONObjectFormat | SchemaFormat,
                      Field(discriminator="type")] | None = None


def _few(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > MOST_METADATA:
        raise ValueError(f"it can have {MOST_METADATA} entries at most")
    return value


Metadata = Annotated[dict[Annotated[str, Field(max_length=64)],
                          Annotated[str, Field(max_length=512)]], BeforeValidator(_few)]


def _off(value: bool) -> bool:
    if value:
        raise ValueError("it can only be false here")
    return value


class ResponsesRequest(SamplingRequest):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MOST_MESSAGES,
                                                 fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = 1
    text: TextSettings | None = None
    tools: Annotated[list[Annotated[FunctionTool, WrapValidator(as_sent)]],
                     Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: (Literal["none", "auto", "required"] | Annotated[
        NamedFunction | AllowedFunctions, Field(discriminator="type")] | None) = None
    parallel_tool_calls: bool | None = None
    include: LongList[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    metadata: Metadata | None = None
    # to go on without these would be to answer something else
    background: Annotated[bool, AfterValidator(_off),
                          WithJsonSchema({"type": "boolean", "const": False})] | None = False
    conversation: None = None
    prompt: None = None

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """See `Object.bounded`."""
        yield from super().bounded(limits)
        if self.max_output_tokens is not None:
            yield "max_output_tokens", self.max_output_tokens, 1, limits.max_model_len


class ResponseStore:
    """The latest responses, with the conversations that led to them."""

    def __init__(self, limit: int = 256, most_characters: int = 64 * 2**20):
        """limit: how many are kept; most_characters: of JSON, all together."""
        self._limit, self._most_characters = limit, most_characters
        self._characters = 0
        self._kept: OrderedDict[str, tuple[dict[str, Any], list[dict[str, Any]], int]] = (
            OrderedDict())
        self._lock = Lock()

    def keep(self, response: dict[str, Any], messages: Iterable[Mapping[str, Any]]) -> None:
        """Remember a finished response. messages: the conversation before it, without its
        instructions, which do not carry over."""
        messages = [*messages, *_messages(response["output"])]
        size = len(json.dumps([response, messages]))
        with self._lock:
            self._kept[response["id"]] = response, messages, size
            self._characters += size
            while len(self._kept) > self._limit or self._characters > self._most_characters:
                self._characters -= self._kept.popitem(last=False)[1][2]

    def response(self, id: str) -> dict[str, Any]:
        """A response that is kept. Raises APIError (404) for another one."""
        return self._found(id, APIError(404, f"There is no response {id[:100]!r} here (any "
                                             "more).", "response_id", "not_found"))[0]

    def messages(self, id: str) -> list[dict[str, Any]]:
        """A conversation up to a response, its answer included. Raises APIError (400)."""
        return self._found(id, APIError(
            400, f"The response {id[:100]!r} is not kept here (any more): send the whole "
                 "conversation as the input.", "previous_response_id",
            "previous_response_not_found"))[1]

    def forget(self, id: str) -> None:
        """Delete a response. Raises APIError (404) for one that is not kept."""
        self.response(id)
        with self._lock:
            if id in self._kept:
                self._characters -= self._kept.pop(id)[2]

    def _found(self, id: str, missing: APIError) -> tuple[dict, list, int]:
        with self._lock:
            if id not in self._kept:
                raise missing
            self._kept.move_to_end(id)
            return self._kept[id]


def conversation(request: ResponsesRequest, store: ResponseStore) -> list[dict[str, Any]]:
    """The messages of a request, those before it included, without its instructions.
    Raises APIError for a previous response that is not kept."""
    earlier = (store.messages(request.previous_response_id)
               if request.previous_response_id is not None else [])
    if isinstance(request.input, str):
        return [*earlier, {"role": "user", "content": request.input}]
    return [*earlier, *_messages(item.model_dump() for item in request.input)]


def _messages(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Items as a chat's messages. An assistant's text and calls are one message there."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": _text(item["content"])})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"],
                             "content": _text(item["output"])})
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(
                {"id": item["call_id"], "type": "function",
                 "function": {"name": item["name"], "arguments": item["arguments"]}})
    return messages


def _text(content: str | list[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def chat_request(request: ResponsesRequest, messages: list[dict[str, Any]],
                 limits: Limits) -> ChatRequest:
    """The chat that a response is.

    messages: as `conversation` gives them. Raises APIError for what only shows now: two tools
    of one name, the choice of a tool that is not there, nothing to answer.
    """
    instructions = [{"role": "system", "content": request.instructions}
                    if request.instructions else None]
    own = ChatRequest.model_fields.keys() - {"stream", "stream_options"}
    chat = {name: getattr(request, name) for name in own & request.model_fields_set}
    logprobs = "message.output_text.logprobs" in (request.include or ())
    chat |= {"messages": [*filter(None, instructions), *messages],
             "max_completion_tokens": request.max_output_tokens, "logprobs": logprobs,
             "top_logprobs": request.top_logprobs if logprobs else None,
             "tools": [_chat_tool(tool) for tool in request.tools or ()],
             "tool_choice": _chat_choice(request.tool_choice),
             "response_format": _chat_format(request.text)}
    return validate_request(chat, ChatRequest, limits)[0]


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function",
            "function": {name: value for name, value in tool.items() if name != "type"}}


def _chat_choice(choice: Any) -> Any:
    if isinstance(choice, NamedFunction):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedFunctions):
        return {"type": "allowed_tools", "allowed_tools": {
            "mode": choice.mode, "tools": [_chat_choice(tool) for tool in choice.tools]}}
    return choice


def _chat_format(text: TextSettings | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    if isinstance(text.format, SchemaFormat):
        return {"type": "json_schema",
                "json_schema": {"name": text.format.name, "schema": text.format.schema_}}
    return {"type": text.format.type}
