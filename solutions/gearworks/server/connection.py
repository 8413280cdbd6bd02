"""One connection of HTTP/1.1: how long its client may take, and how much it may send at once.

uvicorn ends connections that are idle between two requests, and nothing else that is slow. Here
a client has so many seconds for the head of a request, for its body, and to read what was
written to it; each limit holds for the whole, so that a byte now and then does not extend it.
What is no HTTP is answered in OpenAI's form of an error.
"""

import asyncio
import json
import sys
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES = 64 * 1024                  # all headers together
PIECE_BYTES = 8 * 1024


def limited_protocol(*, head_seconds: float, body_seconds: float, write_seconds: float,
                     max_connections: int) -> type[H11Protocol]:
    """uvicorn's protocol, with these limits."""

    class LimitedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None        # of what the client is sending
        _receiving: str | None = None                       # what that is
        _stall: asyncio.TimerHandle | None = None           # of what it should read

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                self._refuse(503, "there are too many connections; try again later")
            self._watch()

        def data_received(self, data: bytes) -> None:
            # h11 counts a head when it has to wait for more of it: here it often has to
            for start in range(0, len(data), PIECE_BYTES):
                if self.transport.is_closing():
                    return
                super().data_received(data[start:start + PIECE_BYTES])
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._abort_unless_read()
            else:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._deadline, self._stall):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._abort_unless_read()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stall is not None and not self.transport.is_closing():
                self._stall.cancel()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._abort_unless_read()

        def send_400_response(self, msg: str) -> None:
            """Called by uvicorn for what is no HTTP."""
            error = sys.exc_info()[1]
            self._refuse(getattr(error, "error_status_hint", 400),
                         "this is no HTTP request that can be read: "
                         f"{str(error) or msg}"[:200])

        def _abort_unless_read(self) -> None:
            """A transport that is closed still waits for its client to read the rest."""
            if self._stall is not None:
                self._stall.cancel()
            self._stall = self.loop.call_later(write_seconds, self.transport.abort)

        def _watch(self) -> None:
            """Start the clock of what the client begins to send, or stop it."""
            receiving = None
            if self.conn.their_state is h11.SEND_BODY:
                receiving = "body"
            elif self.conn.their_state is h11.IDLE and (self.cycle is None
                                                        or self.conn.trailing_data[0]):
                receiving = "head"
            if receiving == self._receiving:
                return
            if self._deadline is not None:
                self._deadline.cancel()
            self._receiving = receiving
            if receiving is not None:
                self._deadline = self.loop.call_later(
                    head_seconds if receiving == "head" else body_seconds, self._too_slow)

        def _too_slow(self) -> None:
            if self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]:
                self.transport.close()                      # it has not begun
            else:
                self._refuse(408, f"the {self._receiving} of the request took too long")

        def _refuse(self, status: int, message: str) -> None:
            """Answer with an error, where that is still possible, and close the connection."""
            if self.transport.is_closing():
                return
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                kind = "server_error" if status >= 500 else "invalid_request_error"
                body = json.dumps({"error": {"message": message, "type": kind, "param": None,
                                             "code": None}}).encode()
                head = [(b"content-type", b"application/json"),
                        (b"content-length", str(len(body)).encode()),
                        (b"connection", b"close")]
                if status == 503:
                    head.append((b"retry-after", b"1"))
                for event in (h11.Response(status_code=status, headers=head,
                                           reason=HTTPStatus(status).phrase.encode()),
                              h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event))
            self.transport.close()

    return LimitedProtocol
