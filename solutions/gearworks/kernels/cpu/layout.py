"""Where the bits of a weight matrix lie, so that a thread reads them in one stream.

A kernel computes sixteen outputs side by side, one in each lane. So the codes of sixteen
neighbouring rows belong together: for some inputs a word of 32 bits of row 0, then one of row
1, and so on. A word is four bytes, for neighbouring inputs, the lowest byte first. With codes
of 8 bits a byte is a code. With codes of 4 bits a word holds eight inputs: the low four bits of
byte j are input j, the high four bits input j + 4. Inputs form groups with a scale (and perhaps
a minimum) for each row. Weights that are not quantized stand here as words of 32 bits, one
input each.

    one block: 16 rows           one group: 32 inputs, or 16
    group 0   word 0: lanes 0 to 15 | word 1: lanes 0 to 15 | …    (of 4 bits: 4 words)
    group 1   …
    then the next 16 rows

All matrices of a model lie in one array. `MATRIX` says where one is in it, and which form it
has; a compiled function takes the array and such a record.

Shapes: out rows, in inputs of a matrix; both are filled up with zeros to whole blocks.
"""

from dataclasses import dataclass

import numpy as np

from gearworks.errors import ModelError
from gearworks.formats.codes import Codes

LANES = 16                  # rows of a block
GROUP = 32                  # inputs that share a scale, at most
NONE = -1                   # where a matrix has no minimums

# Where a matrix lies. rows, columns: as used; blocks, groups: of it; group: inputs of one;
# bits: of a code, 4, 8 or 32; words, scales, minimums: first elements of each in the one array.
MATRIX = np.dtype([(name, np.int64) for name in (
    "rows", "columns", "blocks", "groups", "group", "bits", "words", "scales", "minimums")])


@dataclass(frozen=True)
class Form:
    """In which of its forms a matrix is laid out.

    bits: of a code, 4, 8, or 32 for float32; group: inputs of a group, 32 or 16; minimums:
    whether each group has them. Codes of 4 bits are 0 to 15 and have minimums, those of 8 bits
    are signed and may have them.
    """

    bits: int
    group: int
    minimums: bool

    @classmethod
    def of(cls, weight: Codes | np.ndarray) -> "Form":
        """The smallest form that holds a matrix, (out, in), without a change.

        Raises ModelError for groups that are no multiple of 16, unless a row is one group.
        """
        if isinstance(weight, np.ndarray):
            return cls(32, GROUP, False)
        size = weight.group_size
        if weight.scales.shape[1] > 1 and size % 16:
            raise ModelError("cannot lay out this matrix for the CPU's kernels",
                             f"its groups have {size} inputs, and a multiple of 16 is needed",
                             "quantize it in groups of 32, or run it with the NumPy engine")
        group = GROUP if size % GROUP == 0 or weight.scales.shape[1] == 1 else 16
        if weight.bits <= 4:
            return cls(4, group, True)
        unsigned = weight.codes.dtype == np.uint8 and weight.bits == 8
        return cls(8, group, unsigned or weight.minimums is not None)

    def joined(self, other: "Form") -> "Form":
        """The smallest form that holds both, one below the other."""
        return Form(max(self.bits, other.bits), min(self.group, other.group),
                    max(self.bits, other.bits) < 32 and (self.minimums or other.minimums))

    def shapes(self, rows: int, columns: int) -> list[tuple[int, ...]]:
        """Of the words, the scales and the minimums; () for what there is not."""
        blocks, groups = -(-rows // LANES), -(-columns // self.group)
        numbers = (blocks, groups, LANES)
        return [(blocks, groups, self.group * self.bits // 32, LANES),
                numbers if self.bits < 32 else (), numbers if self.minimums else ()]


def aligned(size: int) -> np.ndarray:
    """Zeros, (size,) uint32, from the beginning of a cache line on."""
    raw = np.zeros(4 * size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first:first + 4 * size].view(np.uint32)


def pack(weight: Codes | np.ndarray, form: Form, words: np.ndarray, scales: np.ndarray | None,
         minimums: np.ndarray | None) -> None:
    """Lay a matrix out for the kernels. It stays the same matrix: `unpack` gives it back.

    weight: (out, in), in codes or float32; form: one that holds it; words: uint32; scales,
    minimums: float32, or None; each of the shape that `form` gives, and overwritten. Groups of
    more inputs than the form's become several with the same scale.
    """
    if form.bits == 32:
        pack_floats(weight if isinstance(weight, np.ndarray) else weight.dequantize(), words)
        return
    rows, columns = weight.codes.shape
    values, own_minimums = _centred(weight, form)
    padded = np.zeros((words.shape[0] * LANES, words.shape[1] * form.group), np.uint8)
    padded[:rows, :columns] = values
    _words(padded, form.bits, words)
    _by_block(weight.scales, scales)
    if minimums is not None:
        _by_block(np.zeros_like(weight.scales) if own_minimums is None else own_minimums,
                  minimums)


def pack_floats(weight: np.ndarray, words: np.ndarray) -> None:
    """Lay a matrix of float32 out, (out, in)."""
    rows, columns = weight.shape
    blocks, groups = words.shape[:2]
    step = max(1, 2**20 // (columns * LANES))         # blocks at a time: no second copy of all
    for first in range(0, blocks, step):
        part = weight[first * LANES:(first + step) * LANES]
        padded = np.zeros((min(step, blocks - first) * LANES, groups * GROUP), np.float32)
        padded[:len(part), :columns] = part
        words[first:first + step] = (padded.view(np.uint32)
                                     .reshape(-1, LANES, groups, GROUP).transpose(0, 2, 3, 1))


def places(bits: int) -> list[int]:
    """Where in a word each code begins, in the order of the inputs.

    >>> places(4), places(8)
    ([0, 8, 16, 24, 4, 12, 20, 28], [0, 8, 16, 24])
    """
    return [8 * byte + half for half in range(0, 8, bits) for byte in range(4)]


def _words(codes: np.ndarray, bits: int, words: np.ndarray) -> None:
    """(16 · blocks, in) uint8 to (blocks, groups, words of a group, 16) uint32."""
    ordered = codes.reshape(words.shape[0], LANES, *words.shape[1:3], 32 // bits)
    words[...] = 0
    for code, shift in enumerate(places(bits)):
        part = ordered[..., code].transpose(0, 2, 3, 1).astype(np.uint32)
        part <<= np.uint32(shift)
        words |= part


def _centred(weight: Codes, form: Form) -> tuple[np.ndarray, np.ndarray | None]:
    """The codes as a form has them, as the bits of uint8, and the minimums that belong to
    them."""
    codes, minimums = weight.codes, weight.minimums
    shift = np.float32(0)
    if form.bits == 4 and codes.dtype == np.int8:
        shift = np.float32(-(1 << weight.bits - 1))
        codes = codes - np.int8(shift)
    elif form.bits == 8 and codes.dtype == np.uint8 and weight.bits == 8:
        shift = np.float32(128)
        codes = codes ^ np.uint8(128)
    if shift:
        moved = shift * weight.scales
        minimums = moved if minimums is None else minimums + moved
    return codes.view(np.uint8), minimums


def _by_block(numbers: np.ndarray, out: np.ndarray) -> None:
    """(rows, groups) to (blocks, groups, 16), each group as often as the form cuts it."""
    rows, groups = numbers.shape
    padded = np.zeros((out.shape[0] * LANES, out.shape[1]), np.float32)
    padded[:rows] = np.repeat(numbers, out.shape[1] // groups, axis=1)
    out[...] = padded.reshape(out.shape[0], LANES, -1).transpose(0, 2, 1)


def unpack(form: Form, rows: int, columns: int, words: np.ndarray,
           scales: np.ndarray | None, minimums: np.ndarray | None) -> np.ndarray:
    """The matrix again, (rows, columns) float32, from what `pack` has written."""
    if form.bits == 32:
        values = words[..., None].view(np.float32)
    else:
        shifts = np.array(places(form.bits), np.uint32)
        codes = (words[..., None] >> shifts & np.uint32((1 << form.bits) - 1)).astype(np.uint8)
        values = (codes if form.bits == 4 else codes.view(np.int8)).astype(np.float32)
    blocks, groups = words.shape[:2]                   # (blocks, groups, word, lane, code)
    values = values.transpose(0, 3, 1, 2, 4).reshape(blocks, LANES, groups, -1)
    if scales is not None:
        values = values * scales.transpose(0, 2, 1)[..., None]
    if minimums is not None:
        values = values + minimums.transpose(0, 2, 1)[..., None]
    return values.reshape(blocks * LANES, -1)[:rows, :columns]
