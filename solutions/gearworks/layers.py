"""The operators of a decoder, in NumPy.

Shapes: T tokens, D hidden size, F feed-forward size. All arrays are float32 and stay so:
Python's own numbers take the dtype of the array that they meet, while a NumPy float64 would
widen it.
Left out on purpose: dropout, gradients, and any batch dimension (model.py says how batches
work).
"""

import numpy as np

from gearworks.products import matmul

LOWEST = np.finfo(np.float32).min


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Apply a linear layer.

    x: (..., in); weight: (out, in), as Hugging Face stores it; bias: (out,) or None; returns
    (..., out).

    >>> linear(np.array([1., 2.], np.float32),
    ...        np.array([[3., 4.], [5., 6.], [0., 1.]], np.float32))
    array([11., 17.,  2.], dtype=float32)
    """
    y = matmul(x, weight.T)
    return y if bias is None else y + bias


def softmax(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Turn the last axis into probabilities.

    x: (..., n), where -inf means "impossible"; out: where to put the result, which may be x
    itself, by default new memory; returns the shape of x, every row summing to 1. A row that is
    -inf throughout, where nothing is possible, gives zeros. Large inputs do not overflow.

    >>> softmax(np.array([1000., 1000., -np.inf], np.float32))
    array([0.5, 0.5, 0. ], dtype=float32)
    """
    # not -inf, since -inf - -inf is nan
    peak = np.maximum.reduce(x, axis=-1, keepdims=True, initial=LOWEST)
    out = np.subtract(x, peak, out=out)
    np.exp(out, out=out)
    # the peak alone adds exp(0) = 1
    out *= 1 / np.maximum(np.add.reduce(out, axis=-1, keepdims=True), 1)
    return out


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale each vector to unit root mean square, then by a learned weight.

    x: (..., D); weight: (D,); returns the shape of x. `eps` is added to the mean square, under
    the root.
    Source: Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"; eps as in HF's
    LlamaRMSNorm.

    >>> rms_norm(np.array([3., 4.], np.float32), np.ones(2, np.float32), 0.0)
    array([0.84852815, 1.1313709 ], dtype=float32)
    """
    mean_square = np.vecdot(x, x)[..., None] / x.shape[-1]                   # (..., 1)
    normed = x / np.sqrt(mean_square + eps)
    normed *= weight
    return normed


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Shift each vector to mean zero, scale it to variance one; then a learned weight and bias.

    x: (..., D); weight, bias: (D,); returns the shape of x. The variance is the mean of the
    squared distances from the mean, over all D elements; `eps` is added to it, under the root.
    Source: Ba, Kiros & Hinton 2016, "Layer Normalization"; equal to torch.nn.LayerNorm.

    >>> layer_norm(np.array([1., 3.], np.float32), np.array([1., 2.], np.float32),
    ...            np.array([0., 5.], np.float32), 0.0)
    array([-1.,  7.], dtype=float32)
    """
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.vecdot(centred, centred)[..., None] / x.shape[-1]          # (..., 1)
    normed = centred / np.sqrt(variance + eps)
    normed *= weight
    normed += bias
    return normed


def silu(x: np.ndarray) -> np.ndarray:
    """The activation x · sigmoid(x), element by element.

    Source: Hendrycks & Gimpel 2016 ("Gaussian Error Linear Units", section 2); or: swish.

    >>> silu(np.array([-100., 0., 100.], np.float32))
    array([ -0.,   0., 100.], dtype=float32)
    """
    out = -x                          # one array from here on: fresh memory costs more than exp
    with np.errstate(over="ignore"):       # exp overflows below -88; x / inf is the right limit
        np.exp(out, out=out)
    out += 1
    return np.divide(x, out, out=out)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Combine the two branches of a gated feed-forward network.

    gate, up: (T, F), the outputs of `gate_proj` and `up_proj`; returns (T, F), the input of
    `down_proj`.
    Source: Shazeer 2020, "GLU Variants Improve Transformer".

    >>> swiglu(np.array([100., 0.], np.float32), np.array([2., 3.], np.float32))
    array([200.,   0.], dtype=float32)
    """
    hidden = silu(gate)
    hidden *= up
    return hidden


def gelu(x: np.ndarray) -> np.ndarray:
    """GPT-2's and Gemma's activation x · Φ(x), with tanh in place of the normal distribution.

    Source: Hendrycks & Gimpel 2016, section 2.

    >>> gelu(np.array([-100., 0., 100.], np.float32))
    array([ -0.,   0., 100.], dtype=float32)
    """
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))
