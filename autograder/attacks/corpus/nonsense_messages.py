"""Sends what is no message of the protocol, of several kinds.

answers: wrong
"""

from collections import deque

from autograder.judge import wire

KINDS = deque([5, [], None, {}, {"value": {"kind": 3}}, {"value": {"kind": "array"}},
               {"value": {"kind": "handle", "number": -1, "yours": True}},
               {"value": {"kind": "enum", "class": "os:x", "name": "y"}},
               {"value": {"kind": "handle", "number": 0, "type": "\0", "operations": 3}},
               {"value": {"kind": "range", "items": [0, 10**18, 1]}},
               {"error": {}}, {"error": {"yours": 10**9}}, {"op": "call", "handle": 99}])


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    KINDS.rotate(1)
    return write(stream, wire.Message(KINDS[0], message.blobs))


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
