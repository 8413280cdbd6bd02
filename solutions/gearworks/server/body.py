"""The JSON that a client sends: how much of it, of what type, and how deep."""

from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from gearworks.server.api_error import APIError

MOST_BYTES = 4 * 2**20              # a hundred times what fits into a context of 8,192 tokens
# A body is read in one go, while everybody else waits: these take up to 0.4 s. Signs inside of
# strings count too; a text with so many is longer than any context.
MOST_SIGNS = {b",": 2**18,          # twice the ids of a context of 131,072
              b":": 2**17, b"[": 2**17, b"{": 2**17}    # what they begin costs far more


async def read_json(request: Request) -> Any:
    """The body of a request; it is counted while it comes.

    Raises APIError: 415 for what does not say that it is JSON (a form or a text is what a page
    may send without asking first), 413 for too much, or too many values, 400 for what is no
    JSON, is nested too deeply, or holds NaN.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise APIError(415, "The body has to be JSON, and the header has to say so: "
                            "Content-Type: application/json.", code="unsupported_media_type")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MOST_BYTES:
        raise _too_large()
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise _too_large()
    for sign, most in MOST_SIGNS.items():
        if body.count(sign) > most:
            raise APIError(413, f"The body holds more than {most:,} times {sign.decode()!r}.",
                           code="body_too_large")
    try:
        return from_json(bytes(body), allow_inf_nan=False)
    except ValueError as error:
        raise APIError(400, f"The body is no JSON that can be read: {error}."[:300],
                       code="invalid_json") from None


def _too_large() -> APIError:
    return APIError(413, f"The body is larger than {MOST_BYTES:,} bytes.",
                    code="body_too_large")
