"""The paths whose answers come from the engine, whole or as a stream of events."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gearworks.server.async_engine import DeltaStream
from gearworks.server.body import read_json
from gearworks.server.exchange import as_api_error, unless_gone
from gearworks.server.protocol import sse_event
from gearworks.server.reply import Reply
from gearworks.server.request_types import Object
from gearworks.server.service import Service
from gearworks.serving.request import Delta

STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"),
                  (b"cache-control", b"no-cache"),
                  (b"x-accel-buffering", b"no")]            # for nginx, which collects otherwise


class Generation:
    """An ASGI application: one path that generates."""

    def __init__(self, service: Service, kind: type[Object],
                 chunks: Callable[[Iterable[Delta], Reply], Iterator[Mapping[str, Any]]],
                 whole: Callable[[Iterable[Delta], Reply], Mapping[str, Any]]):
        """kind: of its requests. chunks, whole: what makes their answers of deltas."""
        self._service, self._kind = service, kind
        self._chunks, self._whole = chunks, whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await read_json(request)
        await unless_gone(receive, self._answer(request, body, send))

    async def _answer(self, request: Request, body: Any, send: Send) -> None:
        service = self._service
        with service.places.held() as hold:
            asked, headers = service.validated(body, self._kind, request)
            requests = await service.aside(service.inputs.requests, asked)
            # the rows of the engine's steps are named as the exchange
            requests = [replace(each, id=f"{request.state.request_id}-{place}")
                        for place, each in enumerate(requests)]
            hold(sum(each.n for each in requests))
            reply = Reply(asked, requests, service.language_model.tokenizer,
                          service.limits.models[0])
            with service.metrics.watching(requests), service.engine.answers(requests) as deltas:
                await deltas.accepted()
                if asked.stream:
                    await send_events(send, self._events(deltas, reply,
                                                         request.state.request_id), headers)
                    return
                whole = self._whole([delta async for delta in deltas], reply)
            await JSONResponse(whole, headers=headers)(request.scope, request.receive, send)

    async def _events(self, deltas: DeltaStream, reply: Reply,
                      request_id: str) -> AsyncIterator[bytes]:
        """The events of a stream; an error is the last of them."""
        try:
            async for delta in deltas:
                yield b"".join(map(sse_event, self._chunks([delta], reply)))
            yield sse_event("[DONE]")
        except Exception as error:
            yield sse_event(as_api_error(error, request_id).body())


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
