"""The OpenAPI document: derived from the types that requests are checked by."""

from typing import Any

from pydantic.json_schema import models_json_schema

from gearworks import __version__
from gearworks.server.request_types import (ChatRequest, CompletionRequest, DetokenizeRequest,
                                            Limits, TokenizeRequest)
from gearworks.server.responses import ResponsesRequest

REQUESTS = {"/v1/chat/completions": ("Answer a conversation", ChatRequest),
            "/v1/completions": ("Continue a text", CompletionRequest),
            "/v1/responses": ("Answer items of input", ResponsesRequest),
            "/tokenize": ("Encode a text or a conversation", TokenizeRequest),
            "/detokenize": ("Decode ids", DetokenizeRequest)}
STREAMS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
QUESTIONS = {"/v1/models": "The models that are served", "/health": "Whether all is well"}
# what any path may answer with
ERRORS = {400: "The request cannot be used", 401: "No API key, or a wrong one",
          403: "A page of another origin, or a foreign Host", 404: "No such model, or path",
          405: "Not with this method", 408: "The request came too slowly",
          413: "The body is too large", 415: "The body is no JSON",
          429: "The queue is full", 500: "The engine or the server failed",
          503: "The server is shutting down, or broken"}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"},
        "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}}


def document(limits: Limits) -> dict[str, Any]:
    """OpenAPI 3.1 for this server."""
    kinds = [(kind, "validation") for _, kind in REQUESTS.values()]
    schemas, definitions = models_json_schema(
        kinds, ref_template="#/components/schemas/{model}")
    named = definitions.get("$defs", {})
    for schema in named.values():
        _allow_null(schema)
    paths: dict[str, Any] = {}
    for path, (summary, kind) in REQUESTS.items():
        answer = {"application/json": {"schema": {"type": "object"}}}
        if path in STREAMS:
            answer["text/event-stream"] = {"schema": {"type": "string"}}
        paths[path] = {"post": _operation(summary, answer) | {"requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schemas[kind, "validation"]}}}}}
    for path, summary in QUESTIONS.items():
        paths[path] = {"get": _operation(
            summary, {"application/json": {"schema": {"type": "object"}}})}
    names = {"type": "string", "enum": list(limits.models)}
    paths["/v1/models/{name}"] = {"get": _named("One of them", "name", names)}
    paths["/v1/responses/{id}"] = {
        method: _named(summary, "id", {"type": "string", "pattern": "^resp_[0-9a-f]{32}$"})
        for method, summary in (("get", "One that is kept"), ("delete", "Forget it"))}
    paths["/metrics"] = {"get": _operation(
        "Counts for Prometheus", {"text/plain": {"schema": {"type": "string"}}})}
    return {"openapi": "3.1.0",
            "info": {"title": "Gearworks", "version": __version__,
                     "description": "An OpenAI-compatible server."},
            "security": [{}, {"key": []}],
            "paths": paths,
            "components": {"schemas": named | {"Error": ERROR},
                           "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}}


def _allow_null(schema: dict[str, Any]) -> None:
    """Say of an object's schema what `request_types.Object` does: null counts as absent."""
    for name, field in schema.get("properties", {}).items():
        kinds = field.get("anyOf", [field])
        if name not in schema.get("required", ()) and {"type": "null"} not in kinds:
            schema["properties"][name] = {"anyOf": [*kinds, {"type": "null"}]}


def _named(summary: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """An operation on what a part of its path names."""
    return _operation(summary, {"application/json": {"schema": {"type": "object"}}}) | {
        "parameters": [{"name": name, "in": "path", "required": True, "schema": schema}]}


def _operation(summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    errors = {str(status): {"description": meaning, "content": {"application/json": {
        "schema": {"$ref": "#/components/schemas/Error"}}}} for status, meaning in
        ERRORS.items()}
    return {"summary": summary,
            "responses": {"200": {"description": "Done", "content": answer}} | errors}
