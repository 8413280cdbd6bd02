"""What is between the products of a layer, on a GPU, each in one pass: rotation and gate.

Shapes: T tokens, H heads, d head size, F feed-forward size. float32, float16 or bfloat16;
computed in float32.
"""

from typing import Any

from gearworks.kernels.triton import power_of_two
from gearworks.kernels.triton.language import Launched, tl, torch, triton


def turn_heads(kernel: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Launch `turn`: one program for each head of each token.

    x: (T, H, d), perhaps a part of a larger product, whose heads lie in one piece; cos, sin:
    (T, 1, d) float32; returns (T, H, d), as `attention.apply_rope`.
    """
    T, H, d = x.shape
    out = torch.empty((T, H, d), dtype=x.dtype, device=x.device)
    if T:
        kernel[(T, H)](x, cos, sin, out, x.stride(0), H, d // 2, power_of_two(d // 2, least=1))
    return out


@triton.jit
def turn_kernel(x, cos, sin, out, row_stride, H, half, HALF: tl.constexpr):
    """One head: element i turns with element i + d/2."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    pairs = tl.arange(0, HALF)
    there = pairs < half
    source = x + token.to(tl.int64) * row_stride + head * 2 * half + pairs
    first = tl.load(source, mask=there, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=there, other=0.0).to(tl.float32)
    at = token * 2 * half + pairs                     # both halves turn by the same angles
    c = tl.load(cos + at, mask=there, other=0.0)
    s = tl.load(sin + at, mask=there, other=0.0)
    target = out + (token.to(tl.int64) * H + head) * 2 * half + pairs
    tl.store(target, (first * c - second * s).to(out.dtype.element_ty), mask=there)
    tl.store(target + half, (second * c + first * s).to(out.dtype.element_ty), mask=there)


def gate_rows(kernel: Any, gate_up: Any) -> Any:
    """Launch `swiglu`: one program for each piece of a row.

    gate_up: (T, 2F), gate, then up; returns (T, F), as `layers.swiglu`.
    """
    gate_up = gate_up.contiguous()
    T, F = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty((T, F), dtype=gate_up.dtype, device=gate_up.device)
    if T:
        kernel[(T, triton.cdiv(F, 1024))](gate_up, out, F, min(1024, power_of_two(F)))
    return out


@triton.jit
def swiglu_kernel(gate_up, out, F, COLUMNS: tl.constexpr):
    """A piece of one row: silu(gate) · up."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < F
    gate = tl.load(gate_up + row * 2 * F + columns, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + columns, mask=there, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * F + columns, gated.to(out.dtype.element_ty), mask=there)


turn = Launched(turn_heads, turn_kernel)
swiglu = Launched(gate_rows, swiglu_kernel)
