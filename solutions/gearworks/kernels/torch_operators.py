"""What is between the products of a layer in torch's decoder: torch's own operators.

Triton's kernels can stand in their place: `kernels.triton.rms_norm` and `elementwise`.
Shapes: T tokens, H heads, d head size, F feed-forward size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Operators:
    """What is between the products of a layer: torch's, or a kernel for each.

    norm: (x, weight, eps), or with a residual, to which x is added first, in place. turn: (x,
    cos, sin), as `attention.apply_rope`. swiglu: of (T, 2F), gate, then up.
    """

    norm: Callable[..., torch.Tensor]
    turn: Callable[..., torch.Tensor]
    swiglu: Callable[..., torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float,
         residual: torch.Tensor | None = None) -> torch.Tensor:
    """RMSNorm of x, or of residual + x, which the residual becomes."""
    if residual is not None:
        x = residual.add_(x)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE of (T, H, d), computed in float32, whatever dtype x has."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, of (T, 2F)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


TORCH = Operators(norm, turn, swiglu)
