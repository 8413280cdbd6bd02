"""GPTQ: round one column after the other, and let those that follow make up for the error.

A layer computes X Wᵀ. Its weights need not be near the old ones as long as the products are,
for inputs X as the layer really meets them. How much the products change with the weights of a
row is a quadratic form, the same for all rows, and the Hessian is its matrix.

Shapes: a weight is (out, in), inputs are (n, in), as they come to the layer for n tokens.
Left out on purpose: a search for scales that clip the outliers, and groups that follow the
order of columns (`g_idx`), which saves nothing once scales are found beforehand.
Source: Frantar et al. 2023, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers".
"""

import numpy as np

from gearworks.errors import ModelError
from gearworks.quantization.rounding import quantize_int4, require_finite


def gptq_hessian(inputs: np.ndarray, damping: float = 0.01) -> np.ndarray:
    """The second derivatives of a layer's mean squared error by the weights of one row.

    inputs: (n, in) float32; returns (in, in) float32: 2/n · XᵀX, and to every element of the
    diagonal `damping` times the diagonal's mean is added, so that the matrix has an inverse
    even when there are fewer inputs than columns, or a column is always zero.
    Raises ModelError when an input is nan or infinite, or all are zero.
    Source: Frantar et al. 2023, sections 3.1 and 3.3.

    >>> gptq_hessian(np.array([[1, 2], [3, 0]], np.float32), damping=0.1)
    array([[10.7,  2. ],
           [ 2. ,  4.7]], dtype=float32)
    """
    require_finite(inputs)
    if not inputs.any():
        raise ModelError("cannot tell which weights matter", "every input of the layer is zero",
                         "calibrate on a text that the model can read, and on more of it")
    scaled = inputs * np.float32((2 / len(inputs)) ** 0.5)
    hessian = scaled.T @ scaled
    hessian[np.diag_indices_from(hessian)] += damping * np.mean(np.diag(hessian))
    return hessian


def inverse_factor(hessian: np.ndarray) -> np.ndarray:
    """The upper triangular U, (in, in) float64, with Uᵀ U = the inverse of the Hessian.

    Row j says how an error in column j is best made up for by the columns after it, when those
    before it are fixed: U[j, j + 1:] / U[j, j] of it in each.
    Raises ModelError for a matrix that has no inverse or is not positive definite.

    >>> factor = inverse_factor(np.array([[2, 1], [1, 2]], np.float32))
    >>> (factor.T @ factor @ [[2, 1], [1, 2]]).round(6)
    array([[1., 0.],
           [0., 1.]])
    """
    try:
        return np.linalg.cholesky(np.linalg.inv(hessian.astype(np.float64))).T
    except np.linalg.LinAlgError:
        raise ModelError("cannot invert the Hessian of a layer",
                         "the inputs that it was made of leave some directions unseen",
                         "use a larger damping, or a longer text to calibrate on") from None


def gptq_quantize(weight: np.ndarray, hessian: np.ndarray, group_size: int,
                  act_order: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round a matrix to 4 bits so that the layer's outputs change little.

    weight: (out, in) float32; hessian: (in, in), as `gptq_hessian` gives it, and left as it is;
    returns what `quantize_int4` returns: codes (out, in), scales and zero points (out, in /
    group_size). The columns are rounded one by one, from the first on. After each, the columns
    that are left are changed by what makes up best for its error. A group's scale and zero
    point are those that `quantize_int4` finds when its first column's turn comes. act_order:
    take the columns with the largest diagonal of the Hessian first; the scales and zero points
    are then found beforehand, in the weights as they were given.
    Raises ModelError as `quantize_int4`, and when the Hessian has no inverse.
    Source: Frantar et al. 2023, algorithm 1.

    >>> alike = np.array([[2, 1.9, 0], [1.9, 2, 0], [0, 0, 2]], np.float32)
    >>> weight = np.array([[7.4, 7.3, 15]], np.float32)
    >>> gptq_quantize(weight, alike, group_size=3)[0], quantize_int4(weight, 3)[0]
    (array([[ 7,  8, 15]], dtype=uint8), array([[ 7,  7, 15]], dtype=uint8))
    """
    scales, zeros = quantize_int4(weight, group_size)[1:]
    order = (np.argsort(-np.diag(hessian), kind="stable") if act_order
             else np.arange(weight.shape[1]))
    factor = inverse_factor(hessian[np.ix_(order, order)]).astype(np.float32)
    left = weight.T[order]                       # (in, out), rows that lie together: a copy
    codes = np.empty(left.shape, np.uint8)
    for start in range(0, len(left), group_size):
        end = start + group_size
        if not act_order:
            _, scale, zero = quantize_int4(left[start:end].T, group_size)
            scales[:, start // group_size], zeros[:, start // group_size] = scale.T, zero.T
        errors = np.empty((group_size, len(weight)), np.float32)
        for j in range(start, end):
            scale, zero = scales[:, order[j] // group_size], zeros[:, order[j] // group_size]
            steps = np.where(scale > 0, scale, np.float32(1))
            codes[order[j]] = np.clip(np.rint(left[j] / steps) + zero, 0, 15)
            rounded = scale * (codes[order[j]] - zero.astype(np.float32))
            errors[j - start] = (left[j] - rounded) / factor[j, j]
            left[j + 1:end] -= np.outer(factor[j, j + 1:end], errors[j - start])
        # the columns of the groups to come, once for the whole group
        left[end:] -= factor[start:end, end:].T @ errors
    return np.ascontiguousarray(codes.T), scales, zeros
