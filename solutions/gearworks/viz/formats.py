"""How a number is stored: its bits in the formats of weights, what is kept and what is lost.

The formats are described here, once; the page rounds in JavaScript, so that any number can be
tried without a kernel.
"""

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from gearworks.viz.figure import Figure, interactive
from gearworks.viz.trace import FigureError

_BLOCK = 32                                  # numbers of a GGUF block


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format: sign, exponent, mantissa without its leading one.

    infinities: whether the largest exponent is kept for infinity and nan, as IEEE 754 has it.
    Without it that exponent holds numbers, only the code of all ones is nan, and a number that
    is too large becomes the largest one.

    >>> half = FloatFormat("fp16", exponent_bits=5, mantissa_bits=10)
    >>> f"{half.encode(0.1):016b}", half.decode(half.encode(0.1)), half.largest
    ('0010111001100110', 0.0999755859375, 65504.0)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent's code."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest number that is not infinite."""
        return self.decode(self._largest_code)

    @property
    def smallest(self) -> float:
        """The smallest number above zero; it is subnormal."""
        return self.decode(1)

    @property
    def _largest_code(self) -> int:
        ones = 2 ** (self.bits - 1) - 1
        return ones - 2 ** self.mantissa_bits if self.infinities else ones - 1

    def encode(self, value: float) -> int:
        """The nearest number's code, an unsigned integer; of two equally near, the even one."""
        sign = 2 ** (self.bits - 1) if math.copysign(1, value) < 0 else 0
        size = abs(value)
        too_large = self._largest_code + self.infinities
        if math.isnan(size):                       # quiet: the first bit of the mantissa is set
            return too_large + (2 ** (self.mantissa_bits - 1) if self.infinities else 1)
        if size == 0 or math.isinf(size):
            return sign + (too_large if size else 0)
        exponent = max(math.frexp(size)[1] - 1, 1 - self.bias)
        # from 2**mantissa_bits on, if not subnormal
        steps = round(math.ldexp(size, self.mantissa_bits - exponent))
        # The leading one adds itself to the exponent; so does the carry of a mantissa that was
        # rounded up.
        return (sign
                + min((exponent + self.bias - 1) * 2 ** self.mantissa_bits + steps, too_large))

    def decode(self, code: int) -> float:
        """The number that a code means."""
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        code %= 2 ** (self.bits - 1)
        exponent, mantissa = divmod(code, 2 ** self.mantissa_bits)
        if code > self._largest_code:
            return sign * (math.inf if self.infinities and not mantissa else math.nan)
        if exponent:
            mantissa += 2 ** self.mantissa_bits
        return sign * math.ldexp(mantissa, max(exponent, 1) - self.bias - self.mantissa_bits)


# IEEE 754-2019; Google's bfloat16; Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
FLOAT_FORMATS = (FloatFormat("fp32", 8, 23), FloatFormat("fp16", 5, 10),
                 FloatFormat("bf16", 8, 7), FloatFormat("fp8 e4m3", 4, 3, infinities=False),
                 FloatFormat("fp8 e5m2", 5, 2))


def number_formats(block: np.ndarray, title: str = "How a number is stored") -> Figure:
    """A number's bits, value and error in fp32, fp16, bf16, fp8, int8 and GGUF's Q8_0 and Q4_0.

    block: (32,) float32, neighbours in a real weight matrix. The reader types or moves the
    first; int8 (one scale for all 32) and the blocks store it together with the other 31.
    Raises FigureError for another shape, and for numbers that are not finite.

    >>> figure = number_formats(np.linspace(0.3, 1, 32, dtype=np.float32))
    >>> repr(figure).splitlines()[2].partition("; ")[0]
    'fp16: 1 sign, 5 exponent and 10 mantissa bits'
    """
    block = np.asarray(block, np.float32)
    if block.shape != (_BLOCK,) or not np.isfinite(block).all():
        raise FigureError("cannot draw these numbers",
                          f"their shape is {block.shape}" if block.shape != (_BLOCK,)
                          else "not all are finite",
                          f"give {_BLOCK} neighbours of a weight matrix")
    first = float(block[0])
    words = [title]
    words += [f"{known.name}: 1 sign, {known.exponent_bits} exponent and {known.mantissa_bits} "
              f"mantissa bits; up to {known.largest:.6g}, down to {known.smallest:.3g}; "
              f"{first:g} becomes {known.decode(known.encode(first))!r}"
              for known in FLOAT_FORMATS]
    words += [f"int8: {_BLOCK} codes of 8 bits and one fp32 scale, so that the largest becomes "
              "127",
              f"Q8_0: blocks of {_BLOCK} codes of 8 bits and an fp16 scale, so that the "
              "largest becomes 127",
              f"Q4_0: blocks of {_BLOCK} codes of 4 bits and an fp16 scale, so that the "
              "largest becomes -8"]
    data = {"floats": [asdict(known) for known in FLOAT_FORMATS], "block": block.tolist()}
    return interactive("formats", title, json.dumps(data, separators=(",", ":")),
                       "\n".join(words))
