"""With einsum, and the parts put side by side with hstack."""

import numpy as np


def column_linear(x, weight, bias=None, all_gather=None):
    outputs = np.einsum("ti,oi->to", x, weight)
    if bias is not None:
        outputs = outputs + bias[None, :]
    if all_gather is not None:
        outputs = np.hstack(all_gather(outputs))
    return outputs


def row_linear(x, weight, all_reduce, bias=None):
    outputs = np.array(all_reduce(np.einsum("ti,oi->to", x, weight)))
    if bias is not None:
        outputs += bias
    return outputs
