"""By the size of the step between neighbours, which the exponent decides."""

import numpy as np


def fp8_e4m3(x):
    value = np.minimum(np.abs(x.astype(np.float64)), 448)
    value[np.isnan(x)] = 0
    exponent = np.maximum(np.frexp(value)[1] - 1, -6)        # value < 2 ** (exponent + 1)
    eighths = np.rint(np.ldexp(value, 3 - exponent))          # 8 to 16, or less if subnormal
    codes = np.where(eighths < 8, eighths, 8 * (exponent + 7) + eighths - 8)
    codes = codes.astype(np.uint8)
    codes[np.isnan(x)] = 0xFF
    codes[np.signbit(x)] |= 0x80
    return codes
