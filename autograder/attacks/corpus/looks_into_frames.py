"""Looks for expected values in the frames and objects around it.

answers: wrong
"""

import gc
import sys



def rms_norm(x, weight, eps):
    frame = sys._getframe()
    while frame is not None:
        for name in ("expected", "right", "check", "oracle", "rng", "seed"):
            if name in frame.f_locals:
                raise RuntimeError(f"@STOLEN@ {name} of {frame.f_code.co_filename}")
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing).__name__ in ("Check", "Outcome", "Report"):
            raise RuntimeError(f"@STOLEN@ {thing!r:.200}")
    return x * 0
