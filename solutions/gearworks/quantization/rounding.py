"""Rounding to few bits: int8 by rows, int4 in groups, float8.

All three ask only which representable number is nearest. What the weights are multiplied with
later, `gptq` and `awq` ask.

    int8    value = scale · code                       one scale for a row; codes -127 to 127
    int4    value = scale · (code - zero point)        one pair for a group; codes 0 to 15
    float8  the code is itself a number, `formats.float8.widen_e4m3` says which

Shapes: a weight is (out, in), as Hugging Face stores it. Weights and scales are float32.
Left out on purpose: random rounding, and scales in fewer bits; files round those as they like.
"""

import numpy as np

from gearworks.errors import ModelError
from gearworks.formats.float8 import widen_e4m3
from gearworks.formats.codes import Codes

LARGEST_E4M3 = 448.0


def quantize_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to int8, with one scale for each row, that is for each output.

    weight: (out, in) float32; returns codes (out, in) int8, from -127 to 127, and scales
    (out, 1) float32, so that scales * codes is nearest to the weight. The number of a row that
    is farthest from zero gets the code 127 or -127. Halves go to the even neighbour, as in
    `np.rint`. A row of zeros has the codes and the scale 0. Nothing overflows, however large or
    small the numbers are.
    Raises ModelError when a number is nan or infinite.
    Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", section 2.1, with the zero point 0.

    >>> codes, scales = quantize_int8(np.array([[1, -2, 0.5], [0, 0, 0]], np.float32))
    >>> codes
    array([[  64, -127,   32],
           [   0,    0,    0]], dtype=int8)
    >>> (scales * codes).round(3)
    array([[ 1.008, -2.   ,  0.504],
           [ 0.   ,  0.   ,  0.   ]], dtype=float32)
    """
    require_finite(weight)
    scales = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.where(scales > 0, scales, np.float32(1))
    # the clip is for rows so small that their scale has lost its precision
    codes = np.clip(np.rint(weight / steps), -127, 127)
    return codes.astype(np.int8), scales


def quantize_int4(weight: np.ndarray,
                  group_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round a matrix to 4 bits, with a scale and a zero point for each group of a row.

    weight: (out, in) float32; group_size: how many neighbours of a row share a scale, it
    divides `in`. Returns codes (out, in) uint8 from 0 to 15, not packed, scales (out, in /
    group_size) float32, and zero points of the same shape, uint8 from 0 to 15. A code stands
    for scale * (code - zero point), and it is the nearest to the weight; the zero point is the
    code of 0. The 15 steps of a group reach from its smallest number to its largest, or from 0
    or to 0 where 0 is not between them. Halves go to the even neighbour, in weight / scale and
    in the zero point alike. A group of zeros has the codes, the scale and the zero point 0.
    Nothing overflows, however large or small the numbers are.
    Raises ModelError when a number is nan or infinite, or `group_size` does not divide `in`.
    Source: Jacob et al. 2018, section 2.1; in groups, as GPTQ and AWQ store it.

    >>> weight = np.array([[-1, 0, 0.5, 2, 3, 3, 3, 3]], np.float32)
    >>> codes, scales, zeros = quantize_int4(weight, group_size=4)
    >>> codes
    array([[ 0,  5,  7, 15, 15, 15, 15, 15]], dtype=uint8)
    >>> scales, zeros
    (array([[0.2, 0.2]], dtype=float32), array([[5, 0]], dtype=uint8))
    """
    require_finite(weight)
    require_groups(weight, group_size)
    grouped = weight.reshape(len(weight), -1, group_size)              # (out, groups, group)
    lows = np.minimum(grouped.min(axis=-1), 0)                         # (out, groups)
    highs = np.maximum(grouped.max(axis=-1), 0)
    # in float64, where the difference of the largest float32 and its negative is finite
    scales = ((highs.astype(np.float64) - lows) / 15).astype(np.float32)
    steps = np.where(scales > 0, scales, np.float32(1))
    zeros = np.clip(np.rint(-lows / steps), 0, 15)
    codes = np.clip(np.rint(grouped / steps[..., None]) + zeros[..., None], 0, 15)
    return codes.astype(np.uint8).reshape(weight.shape), scales, zeros.astype(np.uint8)


def pack_int4(codes: np.ndarray) -> np.ndarray:
    """Put two 4-bit codes into each byte.

    codes: (..., n) uint8 from 0 to 15, n even; returns (..., n/2) uint8. Byte j holds code 2j
    in its low four bits and code 2j + 1 in its high four bits.
    Raises ValueError when n is odd or a code is larger than 15.

    >>> [hex(byte) for byte in pack_int4(np.array([1, 2, 15, 0], np.uint8))]
    ['0x21', '0xf']
    """
    if codes.shape[-1] % 2 or codes.max(initial=0) > 15:
        raise ValueError(f"{codes.shape[-1]} codes up to {codes.max(initial=0)}; what can be "
                         "packed is an even number of codes up to 15")
    return codes[..., ::2] | codes[..., 1::2] << 4


def unpack_int4(packed: np.ndarray) -> np.ndarray:
    """Take two 4-bit codes out of each byte, as `pack_int4` put them there.
    packed: (..., n/2) uint8; returns (..., n) uint8.

    >>> unpack_int4(np.array([0x21, 0x0F], np.uint8))
    array([ 1,  2, 15,  0], dtype=uint8)
    """
    codes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    codes[..., ::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes


def fp8_e4m3(x: np.ndarray) -> np.ndarray:
    """Round float32 to float8, kind E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction.

    x: float32 of any shape; returns uint8 of that shape. Each number gets the code of the
    nearest one of those that `formats.float8.widen_e4m3` gives; halfway between two, the code
    that is even. Beyond 448, the largest, everything becomes 448, infinities too. nan stays
    nan, 0x7F or 0xFF; zero keeps its sign.
    Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; as torch.float8_e4m3fn,
    but for what is beyond 448.

    >>> fp8_e4m3(np.array([1, -1, 1.0625, 500, 0.001], np.float32))
    array([ 56, 184,  56, 126,   1], dtype=uint8)
    """
    x = np.asarray(x, np.float32)
    magnitude = np.where(np.isnan(x), 0, np.minimum(np.abs(x), np.float32(LARGEST_E4M3)))
    bits = magnitude.view(np.uint32)
    # Of 23 bits of fraction 3 are kept; adding just under half of the last one kept, or half
    # where that one is odd, carries into it (and on into the exponent) when it must.
    kept = bits + (2**19 - 1) + (bits >> 20 & 1) >> 20
    normal = kept - (127 - 7 << 3)
    # Below 2^-6 all steps are 2^-9; the eighth is 2^-6 itself, whose code is 8.
    small = np.rint(magnitude * np.float32(2**9))
    codes = np.where(magnitude < 2**-6, small, normal)
    codes = np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)
    return codes | np.signbit(x).astype(np.uint8) << 7


def quantize_fp8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to float8, with one scale for each row, so that its largest number is 448.

    weight: (out, in) float32; returns codes (out, in) uint8 and scales (out, 1) float32. A row
    of zeros has the scale 0. Raises ModelError when a number is nan or infinite.

    >>> codes, scales = quantize_fp8(np.array([[1, -2, 0.5]], np.float32))
    >>> dequantize_fp8(codes, scales)
    array([[ 1. , -2. ,  0.5]], dtype=float32)
    """
    require_finite(weight)
    scales = np.abs(weight).max(axis=1, keepdims=True) / np.float32(LARGEST_E4M3)
    return fp8_e4m3(weight / np.where(scales > 0, scales, np.float32(1))), scales


def dequantize_fp8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The matrix that float8 codes (out, in) and scales (out, 1) stand for, float32."""
    return widen_e4m3(codes) * scales


def int8_codes(weight: np.ndarray) -> Codes:
    """A matrix by `quantize_int8`, as kernels take it. Raises ModelError as that."""
    codes, scales = quantize_int8(weight)
    return Codes(codes, scales, None, bits=8)


def int4_codes(weight: np.ndarray, group_size: int) -> Codes:
    """A matrix by `quantize_int4`, as kernels take it. Raises ModelError as that."""
    return from_zero_points(*quantize_int4(weight, group_size))


def from_zero_points(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> Codes:
    """Codes with a zero point for each group, as codes with a minimum: what a 0 stands for.

    >>> from_zero_points(np.array([[0, 15]], np.uint8), np.array([[0.5]], np.float32),
    ...                  np.array([[4]], np.uint8)).dequantize()
    array([[-2. ,  5.5]], dtype=float32)
    """
    return Codes(codes, scales, -scales * zeros, bits=4)


def require_finite(weight: np.ndarray) -> None:
    """Raise ModelError when a number is nan or infinite: one such would take its whole group
    with it."""
    bad = weight.size - np.count_nonzero(np.isfinite(weight))
    if bad:
        raise ModelError("cannot quantize this matrix",
                         f"{bad} of its {weight.size} numbers are nan or infinite",
                         "check where the weights come from; were they computed in float16?")


def require_groups(weight: np.ndarray, group_size: int) -> None:
    """Raise ModelError unless a row can be cut into groups of this size."""
    if group_size < 1 or weight.shape[1] % group_size:
        raise ModelError("cannot cut this matrix into groups",
                         f"its rows have {weight.shape[1]} numbers, and a group {group_size}",
                         "take groups of 32 or 64; most models' sizes are multiples of these")
