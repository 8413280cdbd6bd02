"""Floats of eight bits, widened to float32.
Every one of their 256 codes is a float32, so nothing is rounded.

    E4M3   sign, 4 bits of exponent (bias 7), 3 bits of fraction; no infinity: the two codes
           with all other bits set are nan, so the largest value is 448. Weights are kept in
           this one ("fn" in PyTorch's name: finite, with nan).
    E5M2   sign, 5 bits of exponent (bias 15), 2 bits of fraction: the upper half of a float16,
           with its infinities.

Left out on purpose: rounding to float8 (it belongs to quantization), the "fnuz" kinds, and
scales (E8M0).
Source: Micikevicius et al. 2022, FP8 Formats for Deep Learning; the OCP 8-bit floating point
specification.
"""

import numpy as np

# E2M1, floats of four bits: twice what each code stands for, so that they are whole numbers.
TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def widen_e4m3(codes: np.ndarray) -> np.ndarray:
    """Widen E4M3 codes. codes: uint8 of any shape; returns float32 of that shape.

    >>> widen_e4m3(np.array([0x38, 0xB8, 0x7E, 0x01, 0x7F], np.uint8))
    array([ 1.000000e+00, -1.000000e+00,  4.480000e+02,  1.953125e-03,
                     nan], dtype=float32)
    """
    bits = codes.astype(np.uint16)
    # Exponent and fraction fit into a float16's, whose bias is larger by 8; its subnormals are
    # theirs too.
    values = (((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16).astype(np.float32)
              * np.float32(2**8))
    return np.where(bits & 0x7F == 0x7F, np.float32(np.nan), values)


def widen_e5m2(codes: np.ndarray) -> np.ndarray:
    """Widen E5M2 codes. codes: uint8 of any shape; returns float32 of that shape.

    >>> widen_e5m2(np.array([0x3C, 0xBC, 0x7B, 0x7C], np.uint8))
    array([ 1.0000e+00, -1.0000e+00,  5.7344e+04,         inf], dtype=float32)
    """
    return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
