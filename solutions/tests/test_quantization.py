"""Rounding to few bits: as PyTorch, gguf-py and the formats' definitions have it."""

import numpy as np
import pytest
import torch
from gguf.quants import MXFP4
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gearworks.errors import ModelError
from gearworks.formats.float8 import widen_e4m3
from gearworks.quantization.mxfp4 import dequantize_mxfp4, mxfp4_codes, quantize_mxfp4
from gearworks.quantization.rounding import (dequantize_fp8, fp8_e4m3, from_zero_points,
                                             int4_codes, int8_codes, pack_int4, quantize_fp8,
                                             quantize_int4, quantize_int8, unpack_int4)

SMALLEST = 2.0**-149


def matrix(rng, *shape):
    return (rng.standard_normal(shape) * np.exp(rng.uniform(-4, 4, (shape[0], 1)))
            ).astype(np.float32)


@st.composite
def matrices(draw, columns=(2, 8, 32)):
    """Finite float32 of any bits, or of one size, with zeros and equal numbers among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 4)), draw(st.sampled_from(columns))
    weight = (rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
              if draw(st.booleans()) else
              (rng.standard_normal(shape) * 2.0 ** draw(st.integers(-149, 120))
               ).astype(np.float32))
    weight[~np.isfinite(weight)] = 0
    alike = rng.random(shape) < draw(st.sampled_from([0, 0.2, 1]))
    weight[alike] = draw(st.sampled_from([0, weight.flat[0], -weight.flat[0]]))
    return weight


# --- int8 ---


def expect_as_torch(values, weight, scales, zeros, lowest, highest):
    """The values of rows are PyTorch's: equal nearly everywhere, and at most a step apart
    where a quotient is near a half, since torch multiplies with the reciprocal."""
    steps = torch.from_numpy(np.where(scales > 0, scales, 1))
    theirs = torch.fake_quantize_per_channel_affine(torch.from_numpy(weight), steps,
                                                    torch.from_numpy(zeros.astype(np.int32)),
                                                    0, lowest, highest).numpy()
    apart = np.abs(values - theirs)
    assert (apart <= 1.001 * scales[:, None]).all()
    assert (apart <= 1e-5 * scales[:, None]).mean() > 0.995


def test_int8_values_are_those_of_torch(rng):
    weight = matrix(rng, 40, 96)
    weight[3] = 0
    codes, scales = quantize_int8(weight)
    expect_as_torch(scales * codes, weight, scales[:, 0], np.zeros(40), -127, 127)


def test_int8_halves_go_to_the_even_code():
    row = np.array([[127, 0.5, 1.5, -0.5, -1.5, 2.5, 3.5]], np.float32)
    assert quantize_int8(row)[0].tolist() == [[127, 0, 2, 0, -2, 2, 4]]


@given(matrices())
@example(np.array([[3.4e38, -3.4e38]], np.float32))
@example(np.array([[190 * SMALLEST, 1e-45]], np.float32))
@settings(deadline=None)
def test_int8_is_within_half_a_step(weight):
    codes, scales = quantize_int8(weight)
    assert np.abs(codes.astype(int)).max() <= 127
    error = np.abs(scales.astype(np.float64) * codes - weight)
    # half a step; where the scale itself is hardly above 0, half a step of the scale for each
    allowed = 0.5001 * scales.astype(np.float64) + 64 * SMALLEST
    assert (error <= allowed).all()
    largest = np.abs(weight).max(axis=1, keepdims=True)
    np.testing.assert_array_equal(np.abs(codes).max(axis=1)[largest[:, 0] > 1e-37], 127)


# --- int4 ---


def test_int4_values_are_those_of_torch(rng):
    weight = matrix(rng, 12, 96)
    weight[5, :32] = 0
    codes, scales, zeros = quantize_int4(weight, 32)
    values = from_zero_points(codes, scales, zeros).dequantize()
    expect_as_torch(values.reshape(-1, 32), weight.reshape(-1, 32), scales.ravel(),
                    zeros.ravel(), 0, 15)


def test_int4_scales_and_zero_points_are_those_of_torchs_observer(rng):
    from torch.ao.quantization import PerChannelMinMaxObserver
    weight = matrix(rng, 8, 64)
    weight[2] = np.abs(weight[2]) + 1                   # on one side of 0
    weight[3] = -np.abs(weight[3]) - 1
    observer = PerChannelMinMaxObserver(0, dtype=torch.quint8, quant_min=0, quant_max=15,
                                        eps=1e-30)
    observer(torch.from_numpy(weight.reshape(-1, 32)))
    scales, zeros = observer.calculate_qparams()
    _, ours, our_zeros = quantize_int4(weight, 32)
    np.testing.assert_allclose(ours.ravel(), scales.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(our_zeros.ravel(), zeros.numpy())


@given(matrices(), st.sampled_from([1, 2]))
@example(np.array([[3.4e38, -3.4e38]], np.float32), 2)
@example(np.array([[22 * SMALLEST, -22 * SMALLEST]], np.float32), 2)
@example(np.array([[7.0, 7.0]], np.float32), 2)
@settings(deadline=None)
def test_int4_is_within_half_a_step_and_keeps_zero(weight, parts):
    group = weight.shape[1] // parts
    codes, scales, zeros = quantize_int4(weight, group)
    assert codes.max() <= 15 and zeros.max() <= 15
    steps = scales.astype(np.float64).repeat(group, axis=1)
    value = steps * (codes.astype(int) - zeros.repeat(group, axis=1).astype(int))
    assert (np.abs(value - weight) <= 0.5001 * steps + 16 * SMALLEST).all()
    assert (value[weight == 0] == 0).all()
    back = from_zero_points(codes, scales, zeros).dequantize()
    np.testing.assert_allclose(back, value, rtol=1e-5, atol=1e-6 * steps.max())


def test_packed_codes_are_gptqs_words(rng):
    """Eight codes along a row are the little-endian 32 bits of GPTQ's layout."""
    codes = rng.integers(0, 16, (3, 16)).astype(np.uint8)
    words = (codes.reshape(3, 2, 8).astype(np.uint32) << np.arange(0, 32, 4)).sum(-1)
    np.testing.assert_array_equal(pack_int4(codes).view("<u4"), words)


@given(st.binary(max_size=24), st.sampled_from([1, 2, 3]))
@settings(deadline=None)
def test_packing_undoes_unpacking(content, axes):
    packed = np.frombuffer(content[:len(content) // 4 * 4], np.uint8)
    packed = packed.reshape([(-1,), (-1, 2), (-1, 2, 2)][axes - 1])
    np.testing.assert_array_equal(pack_int4(unpack_int4(packed)), packed)


@pytest.mark.parametrize("codes", [[1, 2, 3], [16, 0], [0, 255]])
def test_what_cannot_be_packed_is_refused(codes):
    with pytest.raises(ValueError, match="can be packed"):
        pack_int4(np.array(codes, np.uint8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rounded", [
    quantize_int8, lambda weight: quantize_int4(weight, 32), quantize_fp8, quantize_mxfp4])
def test_numbers_that_are_not_finite_are_refused(rng, rounded, value):
    weight = matrix(rng, 3, 64)
    weight[1, 40] = value
    with pytest.raises(ModelError, match="1 of its 192 numbers"):
        rounded(weight)


@pytest.mark.parametrize("group", [0, 3, 128, -32])
def test_groups_that_do_not_fit_are_refused(rng, group):
    with pytest.raises(ModelError, match="rows have 64 numbers"):
        quantize_int4(matrix(rng, 2, 64), group)


def test_codes_for_kernels_stand_for_the_same(rng):
    weight = matrix(rng, 6, 64)
    codes, scales = quantize_int8(weight)
    eight = int8_codes(weight)
    assert (eight.bits, eight.group_size, eight.codes.dtype) == (8, 64, np.int8)
    np.testing.assert_array_equal(eight.dequantize(), codes * scales)
    four = int4_codes(weight, 32)
    assert (four.bits, four.group_size, four.codes.dtype) == (4, 32, np.uint8)
    assert np.abs(four.dequantize() - weight).max() <= 0.501 * four.scales.max()


# --- float8 ---


def torch_e4m3(x):
    cast = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn)
    return cast.view(torch.uint8).numpy()


@pytest.mark.reference("the sign of a nan")
def test_every_upper_half_of_a_float32_is_cast_as_by_torch(rng):
    upper = np.arange(2**16, dtype=np.uint32) << 16
    for low in (0, 1, 0xFFFF, rng.integers(0, 2**16, 2**16, dtype=np.uint32)):
        x = (upper | low).view(np.float32)
        np.testing.assert_array_equal(fp8_e4m3(x), torch_e4m3(x))


def test_numbers_in_the_range_of_e4m3_are_cast_as_by_torch(rng):
    x = (rng.standard_normal(2**18) * 2.0 ** rng.uniform(-12, 10, 2**18)).astype(np.float32)
    np.testing.assert_array_equal(fp8_e4m3(x), torch_e4m3(x))


@pytest.mark.reference("the sign of a nan")
def test_every_e4m3_number_keeps_its_code():
    codes = np.arange(255, dtype=np.uint8).reshape(3, 85)        # nan's second code is its own
    np.testing.assert_array_equal(fp8_e4m3(widen_e4m3(codes)), codes)


def test_the_middle_between_two_numbers_is_the_even_one():
    numbers = widen_e4m3(np.arange(0x7F, dtype=np.uint8))
    middles = (numbers[:-1] + numbers[1:]) / 2                   # exact in float32
    np.testing.assert_array_equal(fp8_e4m3(middles) % 2, 0)
    np.testing.assert_array_equal(fp8_e4m3(-middles) % 2, 0)


def test_float8_of_a_matrix_uses_the_whole_range(rng):
    weight = matrix(rng, 5, 40)
    weight[2] = 0
    codes, scales = quantize_fp8(weight)
    np.testing.assert_array_equal(np.delete(codes & 0x7F, 2, axis=0).max(axis=1), 0x7E)
    back = dequantize_fp8(codes, scales)
    # three bits of fraction: half of an eighth; below 2 ** -6, half of 2 ** -9
    allowed = np.maximum(np.abs(weight) / 16, scales * 2.0**-10)
    assert (np.abs(back - weight) <= 1.001 * allowed).all()
    np.testing.assert_array_equal(back[2], 0)


# --- MXFP4 ---


def test_the_sixteen_elements_are_the_specifications():
    elements = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = np.zeros((1, 1, 16), np.uint8)
    codes[0, 0, :8] = np.arange(0, 16, 2) | np.arange(1, 17, 2) << 4
    got = dequantize_mxfp4(codes, np.array([[127]], np.uint8))[0, :16]
    np.testing.assert_array_equal(got, elements + [-element for element in elements])


def test_mxfp4_is_read_as_transformers_reads_gpt_oss(rng):
    blocks = rng.integers(0, 256, (2, 6, 3, 16)).astype(np.uint8)      # (experts, out, in/32)
    scales = rng.integers(0, 255, (2, 6, 3)).astype(np.uint8)
    scales[0, 0] = 0, 1, 253
    theirs = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales),
                                        dtype=torch.float32)
    np.testing.assert_array_equal(dequantize_mxfp4(blocks, scales),
                                  theirs.transpose(1, 2).numpy())


def test_mxfp4_is_rounded_as_by_gguf(rng):
    weight = matrix(rng, 30, 96)
    weight[4, 32:64] = 0
    blocks, scales = quantize_mxfp4(weight)
    theirs = MXFP4.quantize_blocks(weight.reshape(-1, 32))
    np.testing.assert_array_equal(scales.ravel(), theirs[:, 0])
    np.testing.assert_array_equal(dequantize_mxfp4(blocks, scales),
                                  MXFP4.dequantize_blocks(theirs).reshape(weight.shape))


def test_mxfp4_halves_go_to_the_even_code_and_the_largest_saturate():
    halves = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6.5, 7.9]
    row = np.zeros((1, 32), np.float32)
    row[0, :9], row[0, 9:18] = halves, np.negative(halves)
    blocks, scales = quantize_mxfp4(row)
    assert scales.tolist() == [[127]]
    wanted = [0, 1, 1, 2, 2, 4, 4, 6, 6]
    got = dequantize_mxfp4(blocks, scales)[0, :18]
    np.testing.assert_array_equal(got, wanted + [-each for each in wanted])


@given(matrices(columns=(32, 64)))
@example(np.full((2, 32), 3.4e38, np.float32))
@example(np.full((2, 32), 1e-45, np.float32))
@settings(deadline=None)
def test_mxfp4_is_within_half_a_step(weight):
    blocks, scales = quantize_mxfp4(weight)
    power = np.ldexp(1.0, scales.astype(int) - 127).repeat(32, axis=1)      # (out, in)
    share = np.abs(weight.astype(np.float64)) / power
    step = np.where(share < 2, 0.5, np.where(share < 4, 1, 2))
    error = np.abs(dequantize_mxfp4(blocks, scales) - weight.astype(np.float64))
    allowed = np.where(share > 6, share - 6, step / 2) * power
    assert (error <= allowed + SMALLEST).all()
    np.testing.assert_array_equal(mxfp4_codes(blocks, scales).dequantize(),
                                  dequantize_mxfp4(blocks, scales))


def test_a_scale_that_is_nan_takes_its_block_with_it():
    blocks, scales = np.full((1, 2, 16), 0x22, np.uint8), np.array([[255, 127]], np.uint8)
    for got in (dequantize_mxfp4(blocks, scales), mxfp4_codes(blocks, scales).dequantize()):
        assert np.isnan(got[0, :32]).all()
        np.testing.assert_array_equal(got[0, 32:], 1)
