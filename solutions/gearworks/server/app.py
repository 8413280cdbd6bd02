"""The server as an ASGI application: its paths, and what every request passes on its way.

A request passes CORS, `Exchange` (its id, its errors), the guards of `access`, and its path.
What may take long, for a text or a schema of the client's choice, runs beside the event loop,
in a few threads and for so many seconds. Then the request joins the queue of the engine; when
its client goes away, at whatever moment, all that it holds is free again.
"""

import mimetypes
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from gearworks.server.access import KeyGuard, OriginGuard, is_own_origin
from gearworks.server.api_error import APIError
from gearworks.server.body import read_json
from gearworks.server.exchange import Exchange, as_api_error, error_response, unless_gone
from gearworks.server.generation import (ChatCompletions, Completions, Responses,
                                         send_events)
from gearworks.server.openapi import document
from gearworks.server.protocol import model_list
from gearworks.server.request_types import DetokenizeRequest, TokenizeRequest
from gearworks.server.responses import ResponseStore
from gearworks.server.service import Service

PAGE = Path(__file__).parent / "page"
# The page shows what models write: should markup of theirs ever get through, nothing of it runs
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; "
                               "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache"}


def create_app(service: Service) -> Starlette:
    """The application for a service, which it starts and stops."""
    store = ResponseStore()
    paths = Paths(service, store)
    mimetypes.add_type("text/javascript", ".js")            # Windows may say something else
    routes = [
        Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
        Route("/v1/completions", Completions(service), methods=["POST"]),
        Route("/v1/responses", Responses(service, store), methods=["POST"]),
        Route("/v1/responses/{id}", paths.response, methods=["GET", "DELETE"]),
        Route("/v1/models", paths.models), Route("/v1/models/{name:path}", paths.model),
        Route("/tokenize", paths.tokenize, methods=["POST"]),
        Route("/detokenize", paths.detokenize, methods=["POST"]),
        Route("/health", paths.health), Route("/metrics", paths.metrics),
        Route("/openapi.json", paths.openapi),
        Route("/inside", Inside(service), methods=["GET"]),
        Route("/", paths.page), Mount("/page", StaticFiles(directory=PAGE))]
    options = service.options
    middleware = [Middleware(Exchange, metrics=service.metrics),
                  Middleware(OriginGuard, host=options.host,
                             allowed_origins=options.allowed_origins),
                  Middleware(KeyGuard, key=options.api_key)]
    if options.allowed_origins:
        middleware.insert(0, Middleware(
            CORSMiddleware, allow_origins=options.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Ignored-Parameters", "Retry-After"]))
    app = Starlette(routes=routes, middleware=middleware, lifespan=service.running,
                    exception_handlers={HTTPException: _no_such_path})
    app.router.redirect_slashes = False
    return app


def _no_such_path(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error, request.state.request_id))


class Inside:
    """GET /inside, an ASGI application."""

    def __init__(self, service: Service):
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_own_origin(Request(scope).headers):       # whatever --allow-origin says
            raise APIError(403, "This is for the server's own page only.",
                           code="origin_not_allowed")
        with self._service.feed.reader() as reader:
            await unless_gone(receive, send_events(send, reader.events(), {}))


class Paths:
    """The paths that are answered at once."""

    def __init__(self, service: Service, store: ResponseStore):
        self._service, self._store = service, store

    async def response(self, request: Request) -> Response:
        """GET and DELETE /v1/responses/ID"""
        id = request.path_params["id"]
        if request.method == "DELETE":
            self._store.forget(id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        return JSONResponse(self._store.response(id))

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        return JSONResponse(model_list(self._service.limits, self._service.created))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        for model in model_list(self._service.limits, self._service.created)["data"]:
            if model["id"] == request.path_params["name"]:
                return JSONResponse(model)
        raise APIError(404, "There is no model of this name.", "model", "model_not_found")

    async def health(self, request: Request) -> Response:
        """GET /health"""
        if self._service.engine.error is not None:
            raise APIError.of(self._service.engine.error, 503, code="engine_failed")
        if self._service.draining:
            raise APIError(503, "The server is shutting down.", code="shutting_down")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        return Response(self._service.metrics.text(self._service.engine.unfinished),
                        media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize"""
        service = self._service
        asked, headers = service.validated(await read_json(request), TokenizeRequest, request)
        with service.places.held():
            ids = await service.aside(self._ids, asked)
        return JSONResponse({"count": len(ids), "max_model_len": service.limits.max_model_len,
                             "tokens": ids}, headers=headers)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        service = self._service
        asked, headers = service.validated(await read_json(request), DetokenizeRequest, request)
        with service.places.held():
            text = await service.aside(service.language_model.tokenizer.decode, asked.tokens)
        return JSONResponse({"prompt": text}, headers=headers)

    def _ids(self, asked: TokenizeRequest) -> list[int]:
        if asked.messages is not None:
            return self._service.inputs.chat_ids(asked.messages)
        if asked.prompt is None:
            raise APIError(400, "There is neither a prompt nor messages.", "prompt",
                           "missing_required_parameter")
        return self._service.inputs.text_ids(asked.prompt, "prompt", asked.add_special_tokens)

    async def page(self, request: Request) -> Response:
        """GET /"""
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json"""
        return JSONResponse(document(self._service.limits))

