"""Sends a pickled object whose reading would run code.

answers: wrong
"""

import os
import pickle

from autograder.judge import wire


class Bomb:
    def __reduce__(self):
        return os.system, ("touch @FOLDER@/exploded",)


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    text = b"{'descr': '|O', 'fortran_order': False, 'shape': (2, 8), }"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    data = {"value": {"kind": "array", "blob": 0}}
    return write(stream, wire.Message(data, [header + pickle.dumps(Bomb())]))


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
