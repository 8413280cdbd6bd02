"""Operators one by one: an example worked by hand, an independent formula in float64,
and the laws that must hold."""

import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from gearworks.attention import (alibi_slopes, apply_rope, attention, causal_mask, rope_angles,
                                 rope_frequencies)
from gearworks.layers import linear, rms_norm, silu, softmax, swiglu


def normal(rng, *shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def attention_by_loops(q, k, v, mask):
    """Attention for one query and head at a time, in float64."""
    T, H, d = q.shape
    group = H // k.shape[1]
    out = np.zeros((T, H, d))
    for t in range(T):
        for h in range(H):
            keys = k[mask[t], h // group].astype(np.float64)
            if len(keys):
                scores = keys @ q[t, h] / d ** 0.5
                weights = np.exp(scores - scores.max())
                out[t, h] = weights / weights.sum() @ v[mask[t], h // group]
    return out


def test_linear(rng):
    x, weight, bias = normal(rng, 5, 7), normal(rng, 3, 7), normal(rng, 3)
    expected = torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, bias))).numpy()
    np.testing.assert_allclose(linear(x, weight, bias), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(linear(x, weight), expected - bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 200.0])
def test_softmax_equals_torch(rng, scale):
    x = normal(rng, 4, 6, 33, scale=scale)
    x[1, :, 20:] = -np.inf
    np.testing.assert_allclose(softmax(x), torch.softmax(torch.from_numpy(x), -1).numpy(),
                               rtol=1e-5, atol=1e-7)


def test_softmax_can_work_in_place(rng):
    x = normal(rng, 3, 8)
    expected = softmax(x)
    assert softmax(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.reference("what becomes of nan, without a warning")
def test_softmax_of_the_impossible_is_zero_and_of_nan_is_nan():
    x = np.array([[-np.inf, -np.inf], [0, -np.inf], [np.nan, 0]], np.float32)
    with np.errstate(all="raise"):
        result = softmax(x)
    np.testing.assert_array_equal(result, [[0, 0], [1, 0], [np.nan, np.nan]])


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("scale", [1e-3, 50.0])
def test_rms_norm_equals_torch(rng, eps, scale):
    x, weight = normal(rng, 5, 12, scale=scale), normal(rng, 12)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(x), (12,),
                                            torch.from_numpy(weight), eps).numpy()
    np.testing.assert_allclose(rms_norm(x, weight, eps), expected, rtol=2e-6, atol=1e-7)


def test_silu_and_swiglu_equal_torch(rng):
    gate, up = normal(rng, 6, 9, scale=60.0), normal(rng, 6, 9)
    expected = torch.nn.functional.silu(torch.from_numpy(gate)).numpy()
    np.testing.assert_allclose(silu(gate), expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(swiglu(gate, up), expected * up, rtol=1e-5, atol=1e-30)


def test_operators_leave_their_input_alone(rng):
    x, up, weight = normal(rng, 4, 8), normal(rng, 4, 8), normal(rng, 8)
    before = x.copy(), up.copy(), weight.copy()
    softmax(x), rms_norm(x, weight, 1e-5), silu(x), swiglu(x, up)
    for array, copy in zip((x, up, weight), before):
        np.testing.assert_array_equal(array, copy)


def test_rope_turns_pairs_of_halves_and_keeps_lengths(rng):
    x, positions = normal(rng, 5, 3, 10), np.array([0, 1, 7, 300, 8000])
    frequencies = rope_frequencies(10, 1e4)
    turned = apply_rope(x, *rope_angles(positions, frequencies))
    pairs = ((x[..., :5] + 1j * x[..., 5:])
             * np.exp(1j * positions[:, None, None] * frequencies.astype(np.float64)))
    np.testing.assert_allclose(turned, np.concatenate([pairs.real, pairs.imag], -1), rtol=0,
                               atol=5e-3)
    np.testing.assert_allclose(turned[:3], np.concatenate([pairs.real, pairs.imag], -1)[:3],
                               rtol=0, atol=5e-6)
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_allclose(np.hypot(turned[..., :5], turned[..., 5:]),
                               np.hypot(x[..., :5], x[..., 5:]), rtol=1e-5)


def test_rope_scores_depend_on_distance_only(rng):
    q, k, frequencies = normal(rng, 1, 1, 8), normal(rng, 1, 1, 8), rope_frequencies(8, 1e4)

    def score(query_at, key_at):
        angles = [rope_angles(np.array([at]), frequencies) for at in (query_at, key_at)]
        return float((apply_rope(q, *angles[0]) * apply_rope(k, *angles[1])).sum())
    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(4, 9), abs=1e-2)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 11, 16, 20, 112])
def test_alibi_slopes_equal_those_of_bloom(num_heads):
    """transformers adds slope times position of the key: position 1 shows the slope itself."""
    bias = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)            # (H, 1, 2)
    slopes = alibi_slopes(num_heads)
    assert slopes.dtype == np.float32
    np.testing.assert_allclose(slopes, bias[:, 0, 1].numpy(), rtol=1e-5, atol=0)


def test_causal_mask_hangs_in_the_lower_right_corner():
    assert causal_mask(3, 8).sum(axis=1).tolist() == [6, 7, 8]
    assert causal_mask(1, 4).all() and causal_mask(4, 4).sum() == 10
    assert causal_mask(3, 2).tolist() == [[False, False], [True, False], [True, True]]


@pytest.mark.parametrize("T, S, H, K, d",
                         [(3, 8, 6, 2, 10), (5, 5, 4, 1, 6), (1, 9, 6, 3, 8), (7, 7, 5, 5, 4)])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_attention_equals_loops(rng, T, S, H, K, d, scale):
    q, k = normal(rng, T, H, d, scale=scale), normal(rng, S, K, d, scale=scale)
    v = normal(rng, S, K, d)
    expected = attention_by_loops(q, k, v, causal_mask(T, S))
    np.testing.assert_allclose(attention(q, k, v), expected, rtol=0, atol=2e-5)
    mask = rng.random((T, S)) < 0.5
    mask[0] = False
    result = attention(q, k, v, mask)
    np.testing.assert_allclose(result, attention_by_loops(q, k, v, mask), rtol=0, atol=2e-5)
    assert (result[0] == 0).all() and result.dtype == np.float32


def test_attention_equals_torch(rng):
    q, k, v = normal(rng, 9, 6, 8), normal(rng, 9, 2, 8), normal(rng, 9, 2, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(*(torch.from_numpy(x).transpose(
        0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(attention(q, k, v), expected[0].transpose(0, 1).numpy(), rtol=0,
                               atol=1e-6)


def test_attention_leaves_its_input_alone(rng):
    arrays = normal(rng, 4, 4, 6), normal(rng, 6, 2, 6), normal(rng, 6, 2, 6), causal_mask(4, 6)
    before = [array.copy() for array in arrays]
    attention(*arrays)
    for array, copy in zip(arrays, before):
        np.testing.assert_array_equal(array, copy)
