"""Values to GGUF's blocks of 32: the other direction of `gguf.dequantize`, for four types.

Every function maps (n, 32) float32 to (n, bytes of a block) uint8, and gives the bytes that
llama.cpp's own quantizer gives: the scale is used as it was computed, and stored as float16.
Shapes: n blocks. Left out on purpose: the K-quants, whose scales are found by a search.
Source: quantize_row_q8_0_ref, _q4_0_ref and _q4_1_ref in ggml-quants.c of the ggml repository.
"""

from collections.abc import Callable, Mapping

import numpy as np

from gearworks.formats.gguf import TensorType


def quantize_q8_0(values: np.ndarray) -> np.ndarray:
    """Round to 8 bits around zero; halves go away from zero.

    >>> quantize_q8_0(np.array([[127, -2, 0.5] + [0] * 29], np.float32))[0, :5]
    array([  0,  60, 127, 254,   1], dtype=uint8)
    """
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    steps = values * _inverse(scales)
    whole = np.floor(np.abs(steps))
    whole += np.abs(steps) - whole >= 0.5
    return join_q8_0(np.copysign(whole, steps).astype(np.int8), scales)


def quantize_q4_0(values: np.ndarray) -> np.ndarray:
    """Round to 4 bits around zero: the value farthest from zero becomes -8 times the scale.

    >>> quantize_q4_0(np.array([[-8, 7, 0.4] + [0] * 29], np.float32))[0, :5]
    array([  0,  60, 128, 143, 136], dtype=uint8)
    """
    farthest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scales = farthest / np.float32(-8)
    codes = (values * _inverse(scales) + np.float32(8.5)).astype(np.uint8)
    return join_q4_0(np.minimum(codes, 15), scales)


def quantize_q4_1(values: np.ndarray) -> np.ndarray:
    """Round to 4 bits between the smallest and the largest value.

    >>> quantize_q4_1(np.array([[1, 16, 2.4] + [1] * 29], np.float32))[0, :7]
    array([ 0, 60,  0, 60,  0, 15,  1], dtype=uint8)
    """
    minimums = values.min(axis=1, keepdims=True)
    scales = (values.max(axis=1, keepdims=True) - minimums) / np.float32(15)
    codes = ((values - minimums) * _inverse(scales) + np.float32(0.5)).astype(np.uint8)
    return join_q4_1(np.minimum(codes, 15), scales, minimums)


QUANTIZE: Mapping[TensorType, Callable[[np.ndarray], np.ndarray]] = {
    TensorType.Q8_0: quantize_q8_0, TensorType.Q4_0: quantize_q4_0,
    TensorType.Q4_1: quantize_q4_1}


def join_q8_0(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Blocks of codes (n, 32) int8 and scales (n, 1) float32."""
    return np.concatenate([_float16(scales), codes.view(np.uint8)], axis=1)


def join_q4_0(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Blocks of codes (n, 32) uint8 from 0 to 15, of which 8 is zero, and scales (n, 1)."""
    return np.concatenate([_float16(scales), _nibbles(codes)], axis=1)


def join_q4_1(codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray) -> np.ndarray:
    """Blocks of codes (n, 32) uint8 from 0 to 15, scales and minimums (n, 1)."""
    return np.concatenate([_float16(scales), _float16(minimums), _nibbles(codes)], axis=1)


def _inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scale, as llama.cpp multiplies with it; 0 where that is no number."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=np.abs(scales) > 3e-39)


def _float16(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return numbers.astype("<f2").view(np.uint8)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Value j in the low four bits of byte j, value j + 16 in its high ones."""
    return codes[:, :16] | codes[:, 16:] << 4
