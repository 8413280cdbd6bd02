"""What every exchange of a request and its answer has: an id, and errors in one form."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gearworks.errors import GearworksError
from gearworks.server.api_error import APIError
from gearworks.server.async_engine import EngineError, ShutdownError
from gearworks.server.containment import contained
from gearworks.server.metrics import Metrics

log = logging.getLogger("gearworks.server")

Answer = TypeVar("Answer")


class Exchange:
    """Names each request in the header X-Request-Id, and answers its exceptions.

    Also in the scope: scope["state"]["request_id"].
    """

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                if message["status"] >= 400:
                    self._metrics.refused(message["status"])
            await send(message)

        try:
            _check_length(scope)
            with contained():
                await self._app(scope, receive, send_named)
        except ClientDisconnect:
            log.info("%s: the client has gone", request_id)
        except Exception as error:
            answer = as_api_error(error, request_id)
            if not started:
                await error_response(answer)(scope, receive, send_named)


def _check_length(scope: Scope) -> None:
    """Refuse a body with two lengths: a proxy before us may believe the other one, and then
    one client's body is read as the next one's request.
    Source: RFC 9112, section 6.1."""
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise APIError(400, "The request has a Content-Length and a Transfer-Encoding; it can "
                            "have one of them.", code="ambiguous_length",
                       headers={"Connection": "close"})


def as_api_error(error: Exception, request_id: str) -> APIError:
    """Any exception as the client should see it; one that is a bug of ours goes to the log."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, HTTPException):                    # Starlette's, for 404 and 405
        messages = {404: "There is nothing at this path.",
                    405: "This path does not take this method."}
        return APIError(error.status_code, messages.get(error.status_code, error.detail),
                        headers=dict(error.headers or {}))
    if isinstance(error, ShutdownError):
        return APIError.of(error, 503, code="shutting_down")
    if isinstance(error, EngineError):
        return APIError.of(error, 500, code="engine_failed")
    if isinstance(error, GearworksError):
        return APIError.of(error)
    log.error("%s: an error of the server", request_id, exc_info=error)
    return APIError(500, f"The server failed on this request; its log says more under "
                         f"{request_id}.")


def error_response(error: APIError) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(error.body(), error.status, error.headers)


async def unless_gone(receive: Receive, answer: Coroutine[Any, Any, Answer]) -> Answer:
    """Await an answer; when the client goes away before it is there, cancel it.

    The body must have been read. Raises ClientDisconnect when the client has gone.
    """
    working, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
