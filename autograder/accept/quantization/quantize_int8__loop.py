"""Row by row, in Python's own numbers."""

import numpy as np

from gearworks.errors import ModelError


def quantize_int8(weight):
    codes, scales = [], []
    for row in weight.tolist():
        if not all(abs(number) < float("inf") for number in row):
            raise ModelError("not finite", "a number is nan or infinite", "look for it")
        scale = np.float32(max(abs(number) for number in row) / 127)
        scales.append([scale])
        codes.append([max(-127, min(127, round(number / float(scale)))) if scale else 0
                      for number in row])
    return np.array(codes, np.int8), np.array(scales, np.float32)
