"""Sends an array whose header tells of another shape.

answers: wrong
"""

from autograder.judge import wire


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    blobs = [blob.replace(b"(2, 8)", b"(8, 8)").replace(b"(4, 8)", b"(9, 8)")
             for blob in message.blobs]
    return write(stream, wire.Message(message.data, blobs))


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
