"""A matrix in small integers, whatever file or method they come from.

GGUF's blocks, int8 rows, int4 groups: all of them say scale · code + minimum, with one scale
(and perhaps one minimum) for some neighbours of a row. Kernels are written for this one form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Codes:
    """One weight matrix, (out, in), in codes of `bits` bits.

    codes: (out, in), uint8 for codes from 0 on, int8 for signed ones; not packed. scales:
    (out, groups) float32, one for each in/groups neighbours of a row. minimums: as scales, what
    a code of 0 stands for, or None where that is 0.
    """

    codes: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None
    bits: int

    @property
    def group_size(self) -> int:
        """How many neighbours of a row share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def rows(self, rows: slice | np.ndarray) -> "Codes":
        """A matrix that has some rows of this one, or all in another order."""
        return replace(self, codes=self.codes[rows], scales=self.scales[rows],
                       minimums=None if self.minimums is None else self.minimums[rows])

    def dequantize(self) -> np.ndarray:
        """The matrix, (out, in) float32.

        >>> Codes(np.array([[0, 1, 2, 3]], np.uint8), np.array([[0.5, 2]], np.float32),
        ...       np.array([[-1, 0]], np.float32), bits=4).dequantize()
        array([[-1. , -0.5,  4. ,  6. ]], dtype=float32)
        """
        grouped = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        grouped *= self.scales[..., None]
        if self.minimums is not None:
            grouped += self.minimums[..., None]
        return grouped.reshape(self.codes.shape)


def joined(matrices: Sequence[Codes]) -> Codes:
    """Matrices of one kind, one below the other."""
    minimums = [each.minimums for each in matrices]
    return replace(matrices[0], codes=np.concatenate([each.codes for each in matrices]),
                   scales=np.concatenate([each.scales for each in matrices]),
                   minimums=None if minimums[0] is None else np.concatenate(minimums))
