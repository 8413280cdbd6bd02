"""Products with 4-bit weights on a GPU: codes are unpacked where they are multiplied.

A weight is scale · code + minimum, with one scale and one minimum for a group of G neighbouring
inputs of an output, as `formats.codes.Codes` has it. On the GPU, byte (g · G/2 + j, o) of
`packed` has two codes of output o: in its low half that of input g · G + j, in its high half
that of input g · G + G/2 + j. So both halves belong to one group, neighbouring threads read
neighbouring bytes, and a row of bytes meets a row of inputs that lie side by side.

Shapes: T tokens, m outputs, n inputs. x is float32, float16 or bfloat16, and so is the result;
sums are float32.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gearworks.errors import ModelError
from gearworks.kernels.triton import power_of_two
from gearworks.kernels.triton.language import Launched, level, tl, torch, triton
from gearworks.formats.codes import Codes


@dataclass(frozen=True)
class PackedInt4:
    """A matrix (m, n) as the kernel reads it.

    packed: (n/2, m) uint8; scales, minimums: (n/G, m) float32. The module says which code is
    where.
    """

    packed: Any
    scales: Any
    minimums: Any

    @property
    def group_size(self) -> int:
        return 2 * len(self.packed) // len(self.scales)

    @property
    def nbytes(self) -> int:
        return sum(each.numel() * each.element_size()
                   for each in (self.packed, self.scales, self.minimums))


def pack(codes: Codes, device: Any = "cpu") -> PackedInt4:
    """Lay out codes of 4 bits for the kernel. Signed codes are stored from 0 on.

    Raises ModelError for other bits, and for groups that are no power of two from 32 on.

    >>> codes = Codes(np.arange(32, dtype=np.uint8)[None] % 16, np.ones((1, 1), np.float32),
    ...               None, bits=4)
    >>> [hex(byte) for byte in pack(codes).packed[:3, 0].tolist()]   # inputs 0 and 16, ...
    ['0x0', '0x11', '0x22']
    """
    G, (m, n) = codes.group_size, codes.codes.shape
    if codes.bits != 4 or G < 32 or G & (G - 1):
        raise ModelError("cannot pack these codes",
                         f"they have {codes.bits} bits, in groups of {G}",
                         "the kernel takes 4 bits, and groups of 32, 64, 128, ...")
    offset = 8 if codes.codes.dtype == np.int8 else 0
    grouped = (codes.codes.astype(np.int16) + offset).astype(np.uint8).reshape(m, n // G, 2, -1)
    packed = (grouped[:, :, 0] | grouped[:, :, 1] << 4).reshape(m, n // 2)
    minimums = np.zeros_like(codes.scales) if codes.minimums is None else codes.minimums
    minimums = minimums - offset * codes.scales
    return PackedInt4(*(torch.from_numpy(np.ascontiguousarray(each.T)).to(device)
                        for each in (packed, codes.scales, minimums)))


def multiply(kernel: Any, x: Any, weight: PackedInt4) -> Any:
    """Launch `int4_matmul`: one program for each tile of the result.

    x: (T, n); returns (T, m) in x's dtype.
    """
    T, m = len(x), weight.packed.shape[1]
    x, kept = x.contiguous(), x.dtype
    if level() == "interpreter" and kept == torch.bfloat16:
        x = x.float()                           # it multiplies them as if they were integers
    out = torch.empty((T, m), dtype=x.dtype, device=x.device)
    rows = min(64, power_of_two(T))
    columns = 32 if rows == 16 else 64
    if T:
        kernel[(triton.cdiv(m, columns), triton.cdiv(T, rows))](
            x, weight.packed, weight.scales, weight.minimums, out, T, x.shape[1], m,
            weight.group_size // 2, rows, columns)
    return out.to(kept)


@triton.jit
def int4_matmul_kernel(x, packed, scales, minimums, out, T, n, m, HALF: tl.constexpr,
                       ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of x · Wᵀ, group by group: the sums of codes are scaled, not each weight."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, HALF)
    in_rows = (rows < T)[:, None]
    in_columns = columns < m
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(0, n // (2 * HALF)):
        at = rows[:, None] * n + group * 2 * HALF + inside[None, :]
        low = tl.load(x + at, mask=in_rows, other=0.0)                        # (ROWS, HALF)
        high = tl.load(x + at + HALF, mask=in_rows, other=0.0)
        byte = tl.load(packed + (group * HALF + inside)[:, None] * m + columns[None, :],
                       mask=in_columns[None, :], other=0)                     # (HALF, COLUMNS)
        products = tl.dot(low, (byte & 15).to(low.dtype), input_precision="ieee")
        products = tl.dot(high, (byte >> 4).to(low.dtype), products, input_precision="ieee")
        scale = tl.load(scales + group * m + columns, mask=in_columns, other=0.0)
        minimum = tl.load(minimums + group * m + columns, mask=in_columns, other=0.0)
        total = tl.sum(low.to(tl.float32), 1) + tl.sum(high.to(tl.float32), 1)
        sums += products * scale[None, :] + total[:, None] * minimum[None, :]
    tl.store(out + rows[:, None] * m + columns[None, :], sums.to(out.dtype.element_ty),
             mask=in_rows & in_columns[None, :])


int4_matmul = Launched(multiply, int4_matmul_kernel)
