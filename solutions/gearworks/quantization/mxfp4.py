"""MXFP4: blocks of 32 floats of four bits, which share a power of two.

    element    E2M1: sign, 2 bits of exponent, 1 of fraction; the numbers 0, 0.5, 1, 1.5, 2, 3,
               4, 6 and their negatives, codes 0 to 7 and 8 to 15
    scale      E8M0: eight bits of exponent and nothing else; code e stands for 2 ** (e - 127),
               and 255 for nan

Laid out as gpt-oss has it at Hugging Face: a tensor `…_blocks` with the elements, 16 bytes a
block, the even ones in the low halves of the bytes; and a tensor `…_scales`. GGUF puts the
scale before its block, and elements j and j + 16 into one byte.

Shapes: a weight is (out, in), float32; blocks are (out, in/32, 16), scales (out, in/32), both
uint8.
Left out on purpose: the other formats of the family, and NVFP4 (blocks of 16, scales in E4M3).
Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

import numpy as np

from gearworks.formats.codes import Codes
from gearworks.formats.float8 import TWICE_E2M1
from gearworks.quantization.rounding import (pack_int4, require_finite, require_groups,
                                             unpack_int4)

BLOCK = 32


def quantize_mxfp4(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to MXFP4. weight: (out, in); returns blocks and scales.

    The scale of a block is the power of two that brings its largest number to 4 or above and
    below 8; what is then above 6 becomes 6. Elements go to the nearest number, halves to the
    even code. Raises ModelError when a number is nan or infinite, or 32 does not divide `in`.
    Source: the specification, section 6.3.

    >>> blocks, scales = quantize_mxfp4(np.array([[1, -0.5, 7, *29 * [0]]], np.float32))
    >>> [hex(byte) for byte in blocks[0, 0, :2]], scales
    (['0x92', '0x7'], array([[127]], dtype=uint8))
    """
    require_finite(weight)
    require_groups(weight, BLOCK)
    grouped = weight.reshape(len(weight), -1, BLOCK)                   # (out, blocks, 32)
    # frexp gives a fraction of 0.5 to 1 and an exponent; floor(log2) is one less than that
    exponents = np.frexp(np.abs(grouped).max(axis=-1))[1] - 1 - 2
    exponents = np.where(grouped.any(axis=-1), np.maximum(exponents, -127), -127)
    magnitude = np.ldexp(np.abs(grouped), -exponents[..., None])       # below 8
    # three stretches of equal steps: 0.5 up to 2, 1 up to 4, 2 up to 6
    codes = np.where(magnitude < 2, np.rint(magnitude * 2),
                     np.where(magnitude < 4, np.rint(magnitude) + 2,
                              np.minimum(np.rint(magnitude / 2) + 4, 7))).astype(np.uint8)
    codes |= np.signbit(grouped).astype(np.uint8) << 3
    return pack_int4(codes), (exponents + 127).astype(np.uint8)


def dequantize_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 numbers that MXFP4 stands for.

    blocks: (..., in/32, 16) uint8; scales: (..., in/32) uint8; returns (..., in).

    >>> dequantize_mxfp4(np.array([[[0x92, 0x07, *14 * [0]]]], np.uint8),
    ...                  np.array([[128]], np.uint8))[0, :4]
    array([ 2., -1., 12.,  0.], dtype=float32)
    """
    exponents = scales.astype(np.int32)[..., None] - 128               # one more: doubled
    with np.errstate(over="ignore"):                   # 6 · 2 ** 127 is infinite in float32
        values = np.ldexp(TWICE_E2M1[unpack_int4(blocks)].astype(np.float32), exponents)
    values = np.where(scales[..., None] == 255, np.float32(np.nan), values)
    return values.reshape(*blocks.shape[:-2], -1)


def mxfp4_codes(blocks: np.ndarray, scales: np.ndarray) -> Codes:
    """A matrix in MXFP4, as kernels take it: with whole numbers for codes, twice the elements.
    blocks: (out, in/32, 16); scales: (out, in/32)."""
    halves = np.ldexp(np.float32(1), scales.astype(np.int32) - 128)
    halves = np.where(scales == 255, np.float32(np.nan), halves)
    # from -12 to 12: more than four bits hold
    return Codes(TWICE_E2M1[unpack_int4(blocks)].reshape(len(blocks), -1), halves, None, bits=5)
