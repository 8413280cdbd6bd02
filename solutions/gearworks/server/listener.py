"""The socket that a server listens on."""

import os
import socket

from gearworks.errors import NotAvailableError


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, and does not listen yet.
    Raises NotAvailableError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise NotAvailableError(f"cannot listen on {host}", str(error),
                                "--host 127.0.0.1, or an address of this machine") from None
    try:
        if os.name == "posix":                              # elsewhere it lets two share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise NotAvailableError(f"cannot listen on {host}, port {port}", str(error),
                                "another --port, or 0 for any that is free") from None
    return listener
