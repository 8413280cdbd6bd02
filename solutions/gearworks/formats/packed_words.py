"""Small integers in 32-bit words, as GPTQ's, AWQ's and compressed-tensors' files hold them.

A word holds 32 / bits codes, and all three begin with the lowest bits. They differ in the
neighbours that share a word (inputs of one output, or outputs of one input), in the order
within a word (AWQ's), and in what they store of a zero point (GPTQ's first version).

    GPTQ   qweight (in · bits / 32, out)    word (i, o): codes of 8 neighbouring inputs of o
    AWQ    qweight (in, out / 8)            word (i, o): codes of 8 neighbouring outputs of i,
                                            in the order 0 2 4 6 1 3 5 7

Sources: `pack` in AutoGPTQ's qlinear_cuda_old.py, `WQLinear_GEMM.from_linear` in AutoAWQ,
`convert_gptq_v1_to_v2_format_module` in GPTQModel, `pack_to_int32` in compressed-tensors.
"""

import numpy as np

# Which of eight neighbouring outputs each four bits of AWQ's word hold, from the lowest.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Pack codes, 32 / bits neighbours along an axis to a word, the first in the lowest bits.

    codes: (rows, columns) of integers below 2**bits; bits: a divisor of 32. Returns int32,
    shorter along the axis; the last word is filled with zeros.

    >>> pack_words(np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9]], np.uint8), 4, axis=1)
    array([[-2023406815,           9]], dtype=int32)
    """
    codes = codes if axis == 1 else codes.T
    per_word = 32 // bits
    padded = np.zeros((len(codes), -(-codes.shape[1] // per_word) * per_word), np.uint32)
    padded[:, :codes.shape[1]] = codes
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.bitwise_or.reduce(padded.reshape(len(codes), -1, per_word) << shifts, axis=-1)
    words = words.view(np.int32)
    return words if axis == 1 else np.ascontiguousarray(words.T)


def unpack_words(words: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """The codes in words; the inverse of `pack_words`, without its padding taken off.

    words: (rows, columns) int32. Returns uint8, 32 / bits times as long along the axis.

    >>> unpack_words(np.array([[-2023406815]], np.int32), 4, axis=0).ravel()
    array([1, 2, 3, 4, 5, 6, 7, 8], dtype=uint8)
    """
    rows, columns = words.shape
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    shifts = shifts[:, None] if axis == 0 else shifts
    # as unsigned numbers: shifted right, a negative one would be filled with ones
    spread = np.expand_dims(words.view(np.uint32), axis + 1) >> shifts
    spread &= np.uint32(2**bits - 1)
    return spread.astype(np.uint8).reshape((-1, columns) if axis == 0 else (rows, -1))


def pack_awq(codes: np.ndarray) -> np.ndarray:
    """Pack codes of four bits along outputs in AWQ's order.

    codes: (rows, out) below 16, out a multiple of 8. Returns (rows, out / 8) int32.

    >>> f"{pack_awq(np.arange(8, dtype=np.uint8)[None]).item():x}"
    '75316420'
    """
    eights = codes.reshape(len(codes), -1, 8)[..., list(AWQ_ORDER)]
    return pack_words(eights.reshape(codes.shape), 4, axis=1)


def unpack_awq(words: np.ndarray) -> np.ndarray:
    """The codes in AWQ's words; the inverse of `pack_awq`.

    words: (rows, out / 8) int32. Returns (rows, out) uint8.

    >>> unpack_awq(np.array([[0x75316420]], np.int32))
    array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
    """
    places = np.argsort(AWQ_ORDER)
    eights = unpack_words(words, 4, axis=1).reshape(len(words), -1, 8)[..., places]
    return eights.reshape(len(words), -1)


def zeros_from_v1(words: np.ndarray, bits: int) -> np.ndarray:
    """Packed zero points of GPTQ's second version, from those of the first, which are one less.

    words: int32. One is added to each word at every code's lowest bit, in one sum as GPTQModel
    does it: where its writer borrowed from the next code, this gives it back.

    >>> zeros_from_v1(np.array([0x77777777], np.int32), 4) == 0x88888888 - 2**32
    array([ True])
    """
    return (words.view(np.uint32) + _one_in_each(bits)).view(np.int32)


def zeros_to_v1(words: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of `zeros_from_v1`: packed zero points as GPTQ's first version stores them.

    >>> [f"{word:x}" for word in zeros_to_v1(np.array([0x18], np.int32), 4).view(np.uint32)]
    ['eeeeef07']
    """
    return (words.view(np.uint32) - _one_in_each(bits)).view(np.int32)


def _one_in_each(bits: int) -> np.uint32:
    return np.uint32(sum(1 << shift for shift in range(0, 32, bits)))
