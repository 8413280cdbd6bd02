"""Sends a table whose keys all fall into one place.

answers: wrong
"""

from autograder.judge import wire


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    keys = [number * (2**61 - 1) for number in range(200_000)]
    table = {"kind": "dict", "keys": keys, "values": keys}
    return write(stream, wire.Message({"value": table}))


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
