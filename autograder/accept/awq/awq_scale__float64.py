"""In float64, with logarithms."""

import numpy as np

from gearworks.quantization.rounding import quantize_int4, require_finite


def awq_scale(weight, inputs, group_size, grid=20):
    require_finite(inputs)
    wide = inputs.astype(np.float64)
    mean = np.abs(wide).mean(axis=0)
    if mean.max() == 0:
        return np.ones(len(mean), np.float32)
    logarithm = np.log(np.maximum(mean, 1e-4 * mean.max()))
    logarithm -= (logarithm.max() + logarithm.min()) / 2
    errors, scales = [], []
    for step in range(grid):
        scale = np.exp(step / grid * logarithm).astype(np.float32)
        codes, steps, zeros = quantize_int4(weight * scale, group_size)
        wide_codes = codes.reshape(*steps.shape, -1).astype(np.float64)
        rounded = (steps[..., None] * (wide_codes - zeros[..., None])).reshape(weight.shape)
        errors.append(np.square(wide @ (rounded / scale - weight).T).mean())
        scales.append(scale)
    return scales[int(np.argmin(errors))]
