"""Group by group, and byte by byte."""

import numpy as np

from gearworks.quantization.rounding import require_finite, require_groups


def quantize_int4(weight, group_size):
    require_finite(weight)
    require_groups(weight, group_size)
    out, columns = weight.shape
    codes = np.zeros((out, columns), np.uint8)
    scales = np.zeros((out, columns // group_size), np.float32)
    zeros = np.zeros((out, columns // group_size), np.uint8)
    for row in range(out):
        for group in range(columns // group_size):
            part = slice(group * group_size, (group + 1) * group_size)
            numbers = weight[row, part].astype(float)
            low, high = min(0.0, numbers.min()), max(0.0, numbers.max())
            scale = np.float32((high - low) / 15)
            if scale == 0:
                continue
            scales[row, group] = scale
            zeros[row, group] = zero = min(15, round(-low / float(scale)))
            codes[row, part] = [min(15, max(0, round(number / float(scale)) + zero))
                                for number in numbers]
    return codes, scales, zeros


def pack_int4(codes):
    *axes, n = codes.shape
    if n % 2:
        raise ValueError("one code is left over")
    if (codes > 15).any():
        raise ValueError("five bits")
    pairs = codes.reshape(-1, 2).tolist()
    return np.array([low + 16 * high for low, high in pairs], np.uint8).reshape(*axes, n // 2)
