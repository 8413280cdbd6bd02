"""Who may drive the server: checks of Host and Origin, and the API key.

A browser lets every web page send requests to 127.0.0.1. Two checks keep such pages out. What
comes from a page names its Origin: it must be our own, or one that was allowed. And a page
whose name was bound to 127.0.0.1 after it was loaded (DNS rebinding) has an origin that looks
like our own, but a Host that is not.
"""

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gearworks.server.api_error import APIError

# What tells nothing about anybody, and needs no key: monitors ask, and the chat page must load
# before anybody can type a key into it.
OPEN_PATHS = frozenset({"/", "/health", "/openapi.json"})


def is_loopback(host: str) -> bool:
    """Whether a host, without a port, is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_own_origin(headers: Headers) -> bool:
    """Whether a request comes from a page of this server, or from no page at all.

    Browsers leave out the Origin of images, scripts and links, but not the Sec-Fetch-Site.
    """
    origin = headers.get("origin")
    if origin is not None:
        return origin.lower().partition("://")[2] == headers.get("host", "").lower()
    return headers.get("sec-fetch-site") not in ("cross-site", "same-site")


class OriginGuard:
    """Refuses what a page of another origin has sent, and on loopback a foreign Host."""

    def __init__(self, app: ASGIApp, host: str, allowed_origins: Collection[str] = ()):
        """host: what the server is bound to. allowed_origins: such as `http://localhost:3000`,
        or `*` for every page there is."""
        self._app = app
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}
        self._host = host.lower() if is_loopback(host) else None
        self._names = {urlsplit(origin).hostname for origin in self._origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_origin(scope["method"], headers)
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        if self._host is None:
            return
        name = _host_name(headers.get("host", ""))
        if not name or not (is_loopback(name) or name == self._host or name in self._names):
            raise APIError(403, f"The request names another host than {self._host}, which is "
                                "all that this server listens on.", code="host_not_allowed")

    def _check_origin(self, method: str, headers: Headers) -> None:
        if "*" in self._origins:
            return
        followed = method == "GET" and headers.get("sec-fetch-mode") == "navigate"   # a link
        if (is_own_origin(headers) or followed
                or headers.get("origin", "").lower() in self._origins):
            return
        raise APIError(403, "Pages of another origin may not use this server; --allow-origin "
                            "lets one in.", code="origin_not_allowed")


class KeyGuard:
    """Wants `Authorization: Bearer KEY`, but for OPEN_PATHS and the files of the chat page."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app = app
        self._key = None if key is None else key.encode("utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (scope["type"] == "http" and self._key is not None
                and scope["path"] not in OPEN_PATHS
                and not scope["path"].startswith("/page/")):
            scheme, _, given = (dict(scope["headers"]).get(b"authorization", b"")
                                .partition(b" "))
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                raise APIError(401, "The API key is missing or wrong: give it as "
                                    "Authorization: Bearer KEY.", code="invalid_api_key",
                               headers={"WWW-Authenticate": "Bearer"})
        await self._app(scope, receive, send)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; nothing where it is no host.

    >>> _host_name("localhost:8000"), _host_name("[::1]"), _host_name("evil@localhost")
    ('localhost', '::1', '')
    """
    try:
        return "" if "@" in host else urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
