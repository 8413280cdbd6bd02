"""Prints what it was given, to every stream there is, and logs it.

answers: wrong
"""

import logging
import os
import sys
import warnings



def rms_norm(x, weight, eps):
    text = repr(x.tolist())
    print(text)
    print(text, file=sys.stderr)
    os.write(1, text.encode())
    os.write(2, text.encode())
    logging.error(text)
    warnings.warn(text)
    return x * 0
