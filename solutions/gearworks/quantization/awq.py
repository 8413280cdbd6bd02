"""AWQ: make the weights that meet large inputs larger before they are rounded.

If a column of a weight is multiplied by s and its input divided by s, the layer computes the
same. After rounding it does not: the column's error is divided by s as well, unless the column
has stretched the scale of its group. The columns that matter are those whose inputs are large.

Shapes: a weight is (out, in), inputs are (n, in), as they come to the layer for n tokens.
Left out on purpose: the search for a tighter range of each group.
Source: Lin et al. 2024, "AWQ: Activation-aware Weight Quantization for On-Device LLM
Compression and Acceleration".
"""

import numpy as np

from gearworks.quantization.rounding import int4_codes, require_finite


def awq_scale(weight: np.ndarray, inputs: np.ndarray, group_size: int,
              grid: int = 20) -> np.ndarray:
    """What to multiply each column of a weight with before it is rounded to 4 bits.

    weight: (out, in) float32; inputs: (n, in) float32; returns (in,) float32, all positive. The
    candidates are m ** a for a = 0, 1/grid, … up to but not including 1, where m is the mean
    magnitude of the column's input (of one that is hardly used, a ten-thousandth of the largest
    mean; all ones when every input is zero). Taken is the one with the least squared error of
    the layer's outputs over all inputs, when the weight times the scale is rounded as by
    `quantize_int4` and the inputs are divided by the scale; of equals, the one with the smaller
    a. With a = 0 nothing is scaled, so the error is never above that of rounding alone.
    Each scale is divided by the geometric mean of its largest and its smallest element.
    Raises ModelError as `quantize_int4`, or when an input is nan or infinite.
    Source: Lin et al. 2024, section 3.2, equations 4 and 5.

    >>> weight = np.array([[0.1, 0.9, 3.0, -4.0]], np.float32)
    >>> awq_scale(weight, np.array([[9, 1, 1, 1]], np.float32), group_size=4,
    ...           grid=2).round(3)
    array([1.732, 0.577, 0.577, 0.577], dtype=float32)
    """
    require_finite(inputs)
    magnitude = np.abs(inputs).mean(axis=0)
    magnitude = np.maximum(magnitude, np.float32(1e-4) * magnitude.max())
    if not magnitude.any():
        return np.ones(len(magnitude), np.float32)
    gram = inputs.T @ inputs          # the error is a quadratic form of it: n drops out
    best, least = None, np.inf
    for step in range(grid):
        scale = magnitude ** np.float32(step / grid)
        scale /= np.sqrt(scale.max() * scale.min())
        change = int4_codes(weight * scale, group_size).dequantize() / scale - weight
        error = np.vecdot(change @ gram, change).sum()
        if best is None or error < least:
            best, least = scale, error
    return best
