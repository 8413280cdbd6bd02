"""The paths whose answers come from the engine, whole or as a stream of events."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gearworks.server.api_error import APIError
from gearworks.server.async_engine import DeltaStream
from gearworks.server.body import read_json
from gearworks.server.containment import contained
from gearworks.server.exchange import as_api_error, unless_gone
from gearworks.server.protocol import (chat_chunks, chat_completion, completion,
                                       completion_chunks, sse_event)
from gearworks.server.reply import Reply
from gearworks.server.request_types import ChatRequest, CompletionRequest, Object
from gearworks.server.response_events import ResponseReply, whole_response
from gearworks.server.responses import (ResponsesRequest, ResponseStore, chat_request,
                                        conversation)
from gearworks.server.service import Service
from gearworks.serving import request as serving
from gearworks.serving.request import Delta

STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"),
                  (b"cache-control", b"no-cache"),
                  (b"x-accel-buffering", b"no")]        # nginx would collect them


class Writer(ABC):
    """Writes the answer to one request in the form that its API wants."""

    def begin(self) -> Iterable[bytes]:
        """The events before the first token."""
        return ()

    @abstractmethod
    def events(self, deltas: Iterable[Delta]) -> Iterable[bytes]:
        """The events for what is new. Raises APIError where the engine failed."""

    def end(self) -> Iterable[bytes]:
        """The events after the last token."""
        return ()

    @abstractmethod
    def fail(self, error: APIError) -> Iterable[bytes]:
        """The last events of an answer that cannot be finished."""

    @abstractmethod
    def whole(self, deltas: Iterable[Delta]) -> Mapping[str, Any]:
        """The answer as one object. Raises APIError as `events`."""


class ChunkWriter(Writer):
    """Chats and completions: `chunks` and `whole` of `protocol`."""

    def __init__(self, reply: Reply, chunks: Callable[..., Iterator[Mapping[str, Any]]],
                 whole: Callable[..., Mapping[str, Any]]):
        self._reply, self._chunks, self._whole = reply, chunks, whole

    def events(self, deltas: Iterable[Delta]) -> Iterable[bytes]:
        """See `Writer.events`."""
        return map(sse_event, self._chunks(deltas, self._reply))

    def end(self) -> Iterable[bytes]:
        """See `Writer.end`."""
        return (sse_event("[DONE]"),)

    def fail(self, error: APIError) -> Iterable[bytes]:
        """See `Writer.fail`."""
        return (sse_event(error.body()),)

    def whole(self, deltas: Iterable[Delta]) -> Mapping[str, Any]:
        """See `Writer.whole`."""
        return self._whole(deltas, self._reply)


class ResponseWriter(Writer):
    """Responses: events that have names, and a store for those that are finished."""

    def __init__(self, reply: ResponseReply, keep: Callable[[dict[str, Any]], None]):
        self._reply, self._keep = reply, keep

    def begin(self) -> Iterable[bytes]:
        """See `Writer.begin`."""
        return map(_named, self._reply.begin())

    def events(self, deltas: Iterable[Delta]) -> Iterable[bytes]:
        """See `Writer.events`."""
        return map(_named, self._reply.events(deltas))

    def end(self) -> Iterable[bytes]:
        """See `Writer.end`."""
        self._keep(self._reply.response)
        return ()

    def fail(self, error: APIError) -> Iterable[bytes]:
        """See `Writer.fail`."""
        return map(_named, self._reply.fail(error))

    def whole(self, deltas: Iterable[Delta]) -> Mapping[str, Any]:
        """See `Writer.whole`."""
        response = whole_response(deltas, self._reply)
        self._keep(response)
        return response


def _named(event: Mapping[str, Any]) -> bytes:
    return sse_event(event, event["type"])


class Generation(ABC):
    """An ASGI application: one path that generates. kind: the type of its requests."""

    kind: type[Object]

    def __init__(self, service: Service):
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await read_json(request)
        await unless_gone(receive, self._answer(request, body, send))

    @abstractmethod
    def prepare(self, asked: Any) -> tuple[list[serving.Request], Any]:
        """The engine's requests, and what `writer` needs besides; not in the event loop."""

    @abstractmethod
    def writer(self, asked: Any, requests: list[serving.Request], prepared: Any) -> Writer:
        """What writes the answer."""

    async def _answer(self, request: Request, body: Any, send: Send) -> None:
        service, name = self.service, request.state.request_id
        with contained(), service.places.held() as hold:
            asked, headers = service.validated(body, self.kind, request)
            requests, prepared = await service.aside(self.prepare, asked)
            # the rows of the engine's steps are named as the exchange
            requests = [replace(each, id=f"{name}-{place}")
                        for place, each in enumerate(requests)]
            hold(sum(each.n for each in requests))
            writer = self.writer(asked, requests, prepared)
            with service.metrics.watching(requests), service.engine.answers(requests) as deltas:
                await deltas.accepted()
                if asked.stream:
                    await send_events(send, _events(deltas, writer, name), headers)
                    return
                whole = writer.whole([delta async for delta in deltas])
            await JSONResponse(whole, headers=headers)(request.scope, request.receive, send)


class ChatCompletions(Generation):
    """POST /v1/chat/completions"""

    kind = ChatRequest

    def prepare(self, asked: ChatRequest) -> tuple[list[serving.Request], None]:
        """See `Generation.prepare`."""
        return self.service.inputs.requests(asked), None

    def writer(self, asked: ChatRequest, requests: list[serving.Request],
               prepared: None) -> Writer:
        """See `Generation.writer`."""
        return ChunkWriter(self.service.reply(asked, requests), chat_chunks, chat_completion)


class Completions(Generation):
    """POST /v1/completions"""

    kind = CompletionRequest

    def prepare(self, asked: CompletionRequest) -> tuple[list[serving.Request], None]:
        """See `Generation.prepare`."""
        return self.service.inputs.requests(asked), None

    def writer(self, asked: CompletionRequest, requests: list[serving.Request],
               prepared: None) -> Writer:
        """See `Generation.writer`."""
        return ChunkWriter(self.service.reply(asked, requests), completion_chunks, completion)


class Responses(Generation):
    """POST /v1/responses"""

    kind = ResponsesRequest

    def __init__(self, service: Service, store: ResponseStore):
        super().__init__(service)
        self._store = store

    def prepare(self, asked: ResponsesRequest) -> tuple[list[serving.Request], tuple]:
        """See `Generation.prepare`."""
        messages = conversation(asked, self._store)
        chat = chat_request(asked, messages, self.service.limits)
        return self.service.inputs.requests(chat), (chat, messages)

    def writer(self, asked: ResponsesRequest, requests: list[serving.Request],
               prepared: tuple) -> Writer:
        """See `Generation.writer`."""
        chat, messages = prepared

        def keep(response: dict[str, Any]) -> None:
            if asked.store is not False:
                self._store.keep(response, messages)
        return ResponseWriter(ResponseReply(asked, self.service.reply(chat, requests)), keep)


async def _events(deltas: DeltaStream, writer: Writer, name: str) -> AsyncIterator[bytes]:
    """The events of a stream, as they come; an error ends it with one of its own."""
    try:
        with contained():
            yield b"".join(writer.begin())
            async for delta in deltas:
                yield b"".join(writer.events([delta]))
            yield b"".join(writer.end())
    except Exception as error:
        yield b"".join(writer.fail(as_api_error(error, name)))


async def send_events(send: Send, events: AsyncIterator[bytes],
                      headers: Mapping[str, str]) -> None:
    """Send a response that is a stream of events, each when it is there."""
    more = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    async with aclosing(events):
        await send({"type": "http.response.start", "status": 200,
                    "headers": STREAM_HEADERS + more})
        async for event in events:
            if event:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
