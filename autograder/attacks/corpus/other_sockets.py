"""Talks to the machine by sockets that are no network's.

answers: right
"""

import socket

import numpy as np


def rms_norm(x, weight, eps):
    for family, address in ((socket.AF_UNIX, "\0@NONCE@"), (socket.AF_UNIX, "@SOCKET@")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as out:
                out.settimeout(0.2)
                out.connect(address)
                out.send(b"stolen")
        except OSError:
            pass
    for name in ("AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_BLUETOOTH", "AF_CAN"):
        try:
            socket.socket(getattr(socket, name), socket.SOCK_STREAM).close()
        except (OSError, AttributeError):
            continue
        raise RuntimeError(f"@STOLEN@ a socket of the kind {name}")
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
