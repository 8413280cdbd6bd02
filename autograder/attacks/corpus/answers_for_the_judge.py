"""Says that the judge's own comparison has an error which it expects.

answers: wrong
"""

from autograder.judge import wire


def forged(stream, message, write=wire.write):
    if "value" not in message.data:
        return write(stream, message)
    told = {"yours": 0}
    return write(stream, wire.Message({"error": told}))


wire.write = forged


def rms_norm(x, weight, eps):
    return x * 0
