"""uvicorn as we run it, and how it ends.

The first SIGTERM or Ctrl-C lets running answers finish, for a time of grace; then they are
cancelled, and their clients are told. The second ends the process at once.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from gearworks.server.app import create_app
from gearworks.server.connection import HEAD_BYTES, limited_protocol
from gearworks.server.service import Service

KEEP_ALIVE_SECONDS = 5
SPARE_CONNECTIONS = 256             # beyond those whose answers run or wait
LAST_WORDS_SECONDS = 5              # for clients to read that they were cancelled


@dataclass(frozen=True)
class Patience:
    """How many seconds a client may take for the head of a request, for its body, and to read
    what waits for it."""

    head: float = 10
    body: float = 30
    write: float = 60


class GracefulServer(uvicorn.Server):
    """A service behind a socket. `run` returns when it was told to end, and has."""

    def __init__(self, service: Service, listener: socket.socket, grace: float,
                 on_ready: Callable[[str], None], patience: Patience = Patience()):
        """listener: bound, not yet listening. grace: in seconds. on_ready: called with the
        address when requests are answered."""
        protocol = limited_protocol(
            head_seconds=patience.head, body_seconds=patience.body,
            write_seconds=patience.write,
            max_connections=service.places.limit + SPARE_CONNECTIONS)
        super().__init__(uvicorn.Config(
            create_app(service), http=protocol, ws="none", loop="asyncio", lifespan="on",
            log_config=None, log_level=logging.WARNING, access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(grace + LAST_WORDS_SECONDS),
            h11_max_incomplete_event_size=HEAD_BYTES))
        self._service, self._listener, self._grace = service, listener, grace
        self._on_ready = on_ready

    def run(self) -> None:
        """Serve until `should_exit` is set, by a signal or another thread."""
        super().run([self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        await super().startup(sockets)
        host, port = self._listener.getsockname()[:2]
        self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    def handle_exit(self, sig: int, frame: object) -> None:
        """Called by uvicorn for a signal."""
        if self.should_exit:
            os.write(2, b"gearworks: ended at once\n")
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn, in the end."""
        self._service.draining = True
        self._service.feed.close()
        running = self._service.engine.unfinished
        if running:
            _say(f"{running} unfinished answers may take {self._grace:g} s more; a second "
                 "signal ends them at once")
        over = asyncio.get_running_loop().call_later(self._grace, self._cancel)
        try:
            await super().shutdown(sockets)
        finally:
            over.cancel()
        _say("stopped")

    def _cancel(self) -> None:
        _say(f"{self._service.engine.unfinished} answers were cancelled")
        self._service.engine.cancel_all()


def _say(message: str) -> None:
    print(f"gearworks: {message}", file=sys.stderr, flush=True)
