"""Sends bytes that no message begins with.

answers: wrong
"""

from autograder.judge import wire


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    stream.write(b"\xff" * 64)
    stream.flush()


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
