"""With a structured dtype, and einsum in float64."""

import numpy as np

BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])


def dequantize_q8_0(blocks):
    fields = np.ascontiguousarray(blocks).view(BLOCK)[:, 0]
    values = np.einsum("n,nk->nk", fields["scale"].astype(np.float64),
                       fields["codes"].astype(np.float64))
    return values.astype(np.float32)
