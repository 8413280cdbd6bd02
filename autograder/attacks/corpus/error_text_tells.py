"""Raises an error whose text is what it was given.

answers: wrong
"""



def rms_norm(x, weight, eps):
    raise ValueError(repr(x.tolist()))
