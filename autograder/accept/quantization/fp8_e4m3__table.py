"""By a table of all numbers: the nearest, and of two equally near ones the even code."""

import numpy as np

from gearworks.formats.float8 import widen_e4m3

NUMBERS = widen_e4m3(np.arange(0x7F, dtype=np.uint8)).astype(np.float64)


def fp8_e4m3(x):
    magnitude = np.abs(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e9, neginf=1e9))
    upper = np.searchsorted(NUMBERS, magnitude).clip(1, 0x7E)
    lower = upper - 1
    above, below = NUMBERS[upper] - magnitude, magnitude - NUMBERS[lower]
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    codes = np.where(take_upper, upper, lower)
    codes = np.where(np.isnan(x), 0x7F, codes)
    return (codes + 128 * np.signbit(x)).astype(np.uint8)
