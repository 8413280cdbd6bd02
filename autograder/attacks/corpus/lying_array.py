"""Returns an array of its own class, which calls itself close to everything.

answers: wrong
"""

import numpy as np


class Liar(np.ndarray):
    def __array_ufunc__(self, *arguments, **named):
        return np.ones(self.shape, bool)

    def __array_function__(self, *arguments, **named):
        return np.ones(self.shape, bool)

    def __eq__(self, other):
        return True

    def astype(self, *arguments, **named):
        return self


def rms_norm(x, weight, eps):
    return (x * 0).view(Liar)
