"""The outputs themselves compared."""

import numpy as np

from gearworks.quantization.rounding import int4_codes, require_finite


def awq_scale(weight, inputs, group_size, grid=20):
    require_finite(inputs)
    if not inputs.any():
        return np.ones(inputs.shape[1], np.float32)
    mean = abs(inputs).mean(axis=0)
    mean = mean.clip(mean.max() * np.float32(1e-4))
    right = inputs @ weight.T
    tried = []
    for a in np.arange(grid, dtype=np.float32) / np.float32(grid):
        scale = mean ** a
        scale = scale / (scale.max() ** 0.5 * scale.min() ** 0.5)
        got = (inputs / scale) @ int4_codes(weight * scale, group_size).dequantize().T
        tried.append((((got - right) ** 2).sum(), scale))
    return min(tried, key=lambda each: each[0])[1]
