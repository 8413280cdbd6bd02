"""GGUF's blocks as `Codes`: the numbers of a file as they are, not yet multiplied.

What `formats.gguf` multiplies out, this keeps apart: the small integers, a scale for each
group, and a minimum where the format has one. `codes_of(…).dequantize()` is what `dequantize`
gives, but for the last bit of a float32 in formats with minimums.

Shapes: n blocks. Source: ggml-common.h in the ggml repository.
"""

from math import prod

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.codes import Codes
from gearworks.formats.float8 import TWICE_E2M1
from gearworks.formats.gguf import BLOCK_FORMATS, TensorType
from gearworks.formats.gguf_blocks import unpack_five_bits
from gearworks.formats.gguf_i_quants import sub_block_scales as iq4_xs_scales, unpack_levels
from gearworks.formats.gguf_k_quants import (
    BIT_SHIFTS, PAIR_SHIFTS, sub_block_scales, unpack_bit_pairs, unpack_nibbles)

Block = tuple[np.ndarray, np.ndarray, np.ndarray | None]         # codes, scales, minimums


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 number that begins at a byte of every block, (n, 1) float32."""
    return blocks[:, at:at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """(n, 16) bytes to (n, 32) codes: all low four bits, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _q4_0(blocks: np.ndarray) -> Block:
    return (_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)), _half(blocks, 0), None


def _q4_1(blocks: np.ndarray) -> Block:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> Block:
    codes = unpack_five_bits(blocks[:, 2:6], blocks[:, 6:])
    return codes.view(np.int8) - np.int8(16), _half(blocks, 0), None


def _q5_1(blocks: np.ndarray) -> Block:
    return (unpack_five_bits(blocks[:, 4:8], blocks[:, 8:]), _half(blocks, 0),
            _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> Block:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _q2_k(blocks: np.ndarray) -> Block:
    scales = _half(blocks, 80) * (blocks[:, :16] & 15)
    minimums = -_half(blocks, 82) * (blocks[:, :16] >> 4)
    return unpack_bit_pairs(blocks[:, 16:80]), scales, minimums


def _q3_k(blocks: np.ndarray) -> Block:
    packed = blocks[:, 96:108]
    six_bits = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    six_bits |= (packed[:, None, 8:] >> PAIR_SHIFTS & 3).reshape(-1, 16) << 4
    codes = unpack_bit_pairs(blocks[:, 32:96])
    codes |= (blocks[:, None, :32] >> BIT_SHIFTS & 1) << 2
    scales = _half(blocks, 108) * (six_bits.view(np.int8) - np.int8(32))
    return codes.view(np.int8) - np.int8(4), scales, None


def _q4_k(blocks: np.ndarray) -> Block:
    scales, minimums = sub_block_scales(blocks)
    return unpack_nibbles(blocks[:, 16:]), scales[..., 0], -minimums[..., 0]


def _q5_k(blocks: np.ndarray) -> Block:
    scales, minimums = sub_block_scales(blocks)
    codes = unpack_nibbles(blocks[:, 48:])
    codes |= (blocks[:, None, 16:48] >> BIT_SHIFTS & 1) << 4
    return codes, scales[..., 0], -minimums[..., 0]


def _q6_k(blocks: np.ndarray) -> Block:
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    codes = np.concatenate([low & 15, low >> 4], axis=2)             # half, run, value
    codes |= (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> PAIR_SHIFTS & 3) << 4
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return codes.view(np.int8) - np.int8(32), scales, None


def _iq4_nl(blocks: np.ndarray) -> Block:
    return unpack_levels(blocks[:, 2:]), _half(blocks, 0), None


def _iq4_xs(blocks: np.ndarray) -> Block:
    return unpack_levels(blocks[:, 8:].reshape(-1, 16)), iq4_xs_scales(blocks), None


def _mxfp4(blocks: np.ndarray) -> Block:
    # twice what the codes stand for, -12 to 12, and half of the scales
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return TWICE_E2M1[_nibbles(blocks[:, 1:])], scales, None


_SPLIT = {TensorType.Q4_0: (4, _q4_0), TensorType.Q4_1: (4, _q4_1), TensorType.Q5_0: (5, _q5_0),
          TensorType.Q5_1: (5, _q5_1), TensorType.Q8_0: (8, _q8_0), TensorType.Q2_K: (2, _q2_k),
          TensorType.Q3_K: (3, _q3_k), TensorType.Q4_K: (4, _q4_k), TensorType.Q5_K: (5, _q5_k),
          TensorType.Q6_K: (6, _q6_k), TensorType.IQ4_NL: (8, _iq4_nl),
          TensorType.IQ4_XS: (8, _iq4_xs), TensorType.MXFP4: (5, _mxfp4)}


def is_quantized(type: TensorType | None) -> bool:
    """Whether a tensor of this type is made of codes; None for a file that is no GGUF."""
    return type in _SPLIT


def codes_of(raw: np.ndarray, type: TensorType, shape: tuple[int, int]) -> Codes:
    """Split the bytes of a tensor into codes, scales and minimums.

    raw: the tensor's bytes, uint8, one dimension; shape: (out, in). Raises FormatError for a
    type that has no codes, and where the bytes do not make that shape.

    >>> block = np.array([0, 0x38, 0, 0xBC] + [0x31] * 16, np.uint8)        # scale 0.5, min -1
    >>> codes = codes_of(block, TensorType.Q4_1, (1, 32))
    >>> codes.codes[0, [0, 16]], codes.scales, codes.minimums
    (array([1, 3], dtype=uint8), array([[0.5]], dtype=float32), array([[-1.]], dtype=float32))
    """
    if not is_quantized(type):
        raise FormatError("cannot take a tensor for codes",
                          f"its type is {TensorType(type).name}, which has none",
                          "read it as float32")
    block = BLOCK_FORMATS[type]
    if raw.size * block.size != prod(shape) * block.nbytes or shape[1] % block.size:
        raise FormatError("cannot take a tensor for codes",
                          f"{raw.size} bytes of {type.name} do not make shape {shape}",
                          "the file may be cut off or damaged: fetch it again")
    bits, split = _SPLIT[type]
    codes, scales, minimums = split(raw.reshape(-1, block.nbytes))
    rows = shape[0]
    return Codes(codes.reshape(shape), scales.reshape(rows, -1),
                 None if minimums is None else minimums.reshape(rows, -1), bits)
