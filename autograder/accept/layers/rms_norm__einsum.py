"""With an einsum, and the weight folded into the scale."""

import numpy as np


def rms_norm(x, weight, eps):
    square = np.einsum("...d,...d->...", x, x) / np.float32(x.shape[-1])
    return x * (np.reciprocal(np.sqrt(square + np.float32(eps)))[..., np.newaxis] * weight)
