"""With masks in place of -inf, and a division that skips rows without any possibility."""

import numpy as np


def softmax(x, out=None):
    possible = np.isfinite(x)
    any_possible = possible.any(axis=-1, keepdims=True)
    top = np.where(any_possible, x.max(axis=-1, keepdims=True, where=possible, initial=-np.inf),
                   0)
    powers = np.where(possible, np.exp(np.where(possible, x - top, 0), dtype=np.float32),
                      0).astype(np.float32)
    if out is None:
        out = np.empty_like(x)
    out[...] = 0
    np.divide(powers, powers.sum(axis=-1, keepdims=True), out=out,
              where=np.broadcast_to(any_possible, x.shape))
    return out
