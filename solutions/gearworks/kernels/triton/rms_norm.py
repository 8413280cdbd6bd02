"""RMSNorm on a GPU: one kernel that reads a row once, with the addition before it.

Shapes: T tokens, D hidden size. float32, float16 or bfloat16; the mean square is float32.
"""

from typing import Any

from gearworks.kernels.triton import power_of_two
from gearworks.kernels.triton.language import Launched, tl, torch, triton


def normalize(kernel: Any, x: Any, weight: Any, eps: float, residual: Any = None) -> Any:
    """Launch `rms_norm`: one program for each row.

    x: (..., D); weight: (D,); returns x's shape and dtype. residual: of x's shape, in one
    piece; x is added to it, in place, and the sum is what is normed.
    """
    x, D = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    if x.numel():
        kernel[(x.numel() // D,)](x, weight, x if residual is None else residual, out, D, eps,
                                  residual is not None, power_of_two(D))
    return out


@triton.jit
def rms_norm_kernel(x, weight, residual, out, D, eps, ADD: tl.constexpr,
                    COLUMNS: tl.constexpr):
    """One row: x + residual, where there is one, to unit root mean square, times weight."""
    row = tl.program_id(0).to(tl.int64) * D
    columns = tl.arange(0, COLUMNS)
    there = columns < D
    values = tl.load(x + row + columns, mask=there, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row + columns, mask=there, other=0.0).to(tl.float32)
        tl.store(residual + row + columns, values.to(residual.dtype.element_ty), mask=there)
    mean_square = tl.sum(values * values, 0) / D
    scaled = values / tl.sqrt(mean_square + eps)
    scaled *= tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row + columns, scaled.to(out.dtype.element_ty), mask=there)


rms_norm = Launched(normalize, rms_norm_kernel)
