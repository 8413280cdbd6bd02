"""Sends lists within lists within lists.

answers: wrong
"""

from autograder.judge import wire


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    text = b'{"value":' + b"[" * 10**6 + b"]" * 10**6 + b"}"
    stream.write(len(text).to_bytes(4, "little") + bytes(4) + text)
    stream.flush()


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
