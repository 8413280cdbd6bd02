"""Checks of the K-quants: every value against its bits, as the block's description says."""

import struct

import numpy as np

from autograder.checking import check, expect, expect_close, expect_equal, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.blocks import blocks
from gearworks.formats import gguf_k_quants as reference

Q4_K = "gguf_k_quants.unpack_scales+dequantize_q4_k"
Q6_K = "gguf_k_quants.dequantize_q6_k"


def six_bits(packed: list[int]) -> tuple[list[int], list[int]]:
    """The eight scales and minimums of twelve bytes."""
    scales = [packed[j] % 64 if j < 4 else packed[j + 4] % 16 + packed[j - 4] // 64 * 16
              for j in range(8)]
    minimums = [packed[j + 4] % 64 if j < 4 else packed[j + 4] // 16 + packed[j] // 64 * 16
                for j in range(8)]
    return scales, minimums


def halves(rng, n: int) -> np.ndarray:
    """(n, 2) uint8: float16 numbers of both signs and several sizes."""
    numbers = rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 0, n)
    return numbers.astype("<f2").reshape(n, 1).view(np.uint8)


def q4_k_blocks(rng, n: int) -> np.ndarray:
    return np.hstack([halves(rng, n), halves(rng, n),
                      rng.integers(0, 256, (n, 140), dtype=np.uint8)])


def q6_k_blocks(rng, n: int) -> np.ndarray:
    return np.hstack([rng.integers(0, 256, (n, 208), dtype=np.uint8), halves(rng, n)])


def q4_k_values(blocks: np.ndarray) -> np.ndarray:
    values = np.empty((len(blocks), 256), np.float32)
    for row, block in zip(values, blocks):
        scale, minimum = map(np.float32, struct.unpack("<ee", block[:4].tobytes()))
        codes = block[16:].tolist()
        for j, (times, less) in enumerate(zip(*six_bits(block[4:16].tolist()))):
            run = codes[32 * (j // 2):32 * (j // 2) + 32]
            nibbles = np.array([code // 16 if j % 2 else code % 16 for code in run], np.float32)
            row[32 * j:32 * j + 32] = (nibbles * (scale * np.float32(times))
                                       - minimum * np.float32(less))
    return values


def q6_k_values(blocks: np.ndarray) -> np.ndarray:
    values = np.empty((len(blocks), 256), np.float32)
    for row, block in zip(values, blocks):
        low, high = block[:128].tolist(), block[128:192].tolist()
        *scales, scale = struct.unpack("<16be", block[192:].tobytes())
        for place in range(256):
            half, run, byte = place // 128, place % 128 // 32, place % 32
            pair = low[64 * half + 32 * (run % 2) + byte]
            bits = pair // 16 if run > 1 else pair % 16
            bits += high[32 * half + byte] // 4**run % 4 * 16
            row[place] = (np.float32(scale) * np.float32(scales[place // 16])
                          * np.float32(bits - 32))
    return values


def expect_blocks(dequantize, blocks: np.ndarray, wanted: np.ndarray, of: str,
                  hint: str = "") -> None:
    with expect_unchanged(blocks, hint="The bytes belong to the file."):
        got = dequantize(blocks)
    expect_close(got, wanted, of=of, axes=["block", "value"], atol=1e-5, rtol=1e-5, hint=hint)


def expect_scales(unpack_scales, packed: np.ndarray, hint: str = "") -> None:
    with expect_unchanged(packed):
        got = unpack_scales(packed)
    expect(isinstance(got, tuple) and len(got) == 2, "a pair, the scales and the minimums",
           repr(got)[:60])
    wanted = [six_bits(row) for row in packed.tolist()]
    for number, name in enumerate(("scales", "minimums")):
        expect(getattr(got[number], "dtype", None) == np.uint8,
               f"the {name} as an array of uint8",
               f"{getattr(got[number], 'dtype', type(got[number]).__name__)}")
        expect_equal(got[number].tolist(), [row[number] for row in wanted],
                     of=f"the {name} in {packed.tolist()}"[:90], hint=hint)


example_of_unpack_scales_dequantize_q4_k = docstring_example(Q4_K, points=1)


@check(Q4_K, points=1, public=True)
def first_four(unpack_scales, dequantize_q4_k, rng):
    """The first four scales and minimums: six low bits each, whatever the high two say."""
    packed = np.zeros((1, 12), np.uint8)
    packed[0, :8] = rng.integers(1, 64, 8)
    expect_scales(unpack_scales, packed, "Scales in bytes 0 to 3, minimums in bytes 4 to 7.")
    packed[0, :8] |= 0xC0
    expect_scales(unpack_scales, packed,
                  "`& 63` keeps six bits; the other two belong to somebody else.")


@check(Q4_K, points=2, public=True)
def second_four(unpack_scales, dequantize_q4_k, rng):
    """The second four: four bits from the last group, two from the top of the first two."""
    packed = rng.integers(0, 256, (3, 12), dtype=np.uint8)
    expect_scales(unpack_scales, packed,
                  "Low nibble for the scale, high nibble for the minimum, and the two bits "
                  "above them come from another byte: shift them down by 6, and up by 4.")


@check(Q4_K, points=2, public=True)
def values_of_q4_k(unpack_scales, dequantize_q4_k, rng):
    """Each sub-block of 32 has its scale and its minimum, which is subtracted."""
    blocks = q4_k_blocks(rng, 3)
    expect_blocks(dequantize_q4_k, blocks, q4_k_values(blocks), "three blocks of Q4_K",
                  "Sub-block 2i is the low nibbles of run i, sub-block 2i + 1 its high ones. "
                  "And mind the sign of the minimum: it is not that of Q4_1.")


@check(Q4_K, points=1.5, public=True)
def any_q4_k(unpack_scales, dequantize_q4_k, rng):
    """Blocks of every scale, that may not be written to."""
    expect_agreement(unpack_scales, reference.unpack_scales, blocks(12, 0), rng,
                     hint="Which scale or minimum differs first, and which bits of which two "
                          "bytes is it made of?")
    expect_agreement(dequantize_q4_k, reference.dequantize_q4_k, blocks(144, 2), rng,
                     examples=30,
                     hint="Which sub-block is the first that differs? Its scale, its minimum, "
                          "and its nibbles each come from a place of their own.")


@check(Q4_K, points=0.5, public=False)
def many_blocks(unpack_scales, dequantize_q4_k, rng):
    """Many blocks, all patterns of scales."""
    expect_scales(unpack_scales, rng.integers(0, 256, (50, 12), dtype=np.uint8))
    blocks = q4_k_blocks(rng, 20)
    expect_blocks(dequantize_q4_k, blocks, q4_k_values(blocks), "twenty blocks of Q4_K")


example_of_dequantize_q6_k = docstring_example(Q6_K, points=1)


@check(Q6_K, points=1, public=True)
def low_and_high_bits(dequantize_q6_k, rng):
    """Four low bits and two high bits, found in their places, make a number around zero."""
    blocks = q6_k_blocks(rng, 1)
    blocks[:, 192:208] = 1
    blocks[:, 208:] = np.array([1.0], "<f2").view(np.uint8)
    expect_blocks(dequantize_q6_k, blocks, q6_k_values(blocks),
                  "a block of Q6_K whose scales are all one",
                  "Four runs of 32 in each half. The first two take low nibbles, the last two "
                  "high ones; run r takes bits 2r and 2r + 1 of the high bytes.")


@check(Q6_K, points=2, public=True)
def signed_scales(dequantize_q6_k, rng):
    """Sixteen values share a signed scale."""
    blocks = q6_k_blocks(rng, 2)
    expect_blocks(dequantize_q6_k, blocks, q6_k_values(blocks), "two blocks of Q6_K",
                  "The scales are int8, one for every 16 values; the float16 that makes "
                  "numbers of them comes last.")


@check(Q6_K, points=1.5, public=True)
def any_q6_k(dequantize_q6_k, rng):
    """Blocks of every scale, that may not be written to."""
    expect_agreement(dequantize_q6_k, reference.dequantize_q6_k, blocks(210, 1, 208), rng,
                     examples=30,
                     hint="Which value is the first that differs? Find its half, its run and "
                          "its byte in the docstring's table.")


@check(Q6_K, points=0.5, public=False)
def many_q6_k_blocks(dequantize_q6_k, rng):
    """Many blocks, extreme scales among them."""
    blocks = q6_k_blocks(rng, 12)
    blocks[0, 208:] = np.array([-60000.0], "<f2").view(np.uint8)
    blocks[1, 192:208] = 128
    expect_blocks(dequantize_q6_k, blocks, q6_k_values(blocks), "twelve blocks of Q6_K")
