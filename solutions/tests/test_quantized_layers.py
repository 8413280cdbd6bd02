"""GPTQ and AWQ: against the mathematics that they claim, and on models of Hugging Face's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.quantization import calibration
from gearworks.quantization.awq import awq_scale
from gearworks.quantization.calibration import (MATRICES, METHODS, calibration_texts,
                                                layer_inputs, rounded_layers, run_layer,
                                                with_layers)
from gearworks.quantization.gptq import gptq_hessian, gptq_quantize, inverse_factor
from gearworks.quantization.rounding import from_zero_points, int4_codes, quantize_int4


def layer(rng, n, out, columns):
    """A weight, and inputs whose columns go together and differ in size."""
    mix = rng.standard_normal((columns, columns)) * np.exp(rng.uniform(-1.5, 1.5, columns))
    inputs = rng.standard_normal((n, columns)) @ mix + rng.standard_normal((n, 1))
    return rng.standard_normal((out, columns)).astype(np.float32), inputs.astype(np.float32)


def output_error(values, weight, inputs):
    return float(np.mean((inputs.astype(np.float64) @ (values - weight).T) ** 2))


# --- GPTQ ---


def test_the_hessian_is_the_second_derivative(rng):
    weight, inputs = layer(rng, 30, 1, 7)
    x, wanted = torch.from_numpy(inputs).double(), torch.from_numpy(weight[0]).double()

    def loss(row):
        return torch.mean((x @ row - x @ wanted) ** 2)

    second = torch.autograd.functional.hessian(loss, torch.zeros(7, dtype=torch.float64))
    got = gptq_hessian(inputs, damping=0)
    np.testing.assert_allclose(got, second.numpy(), rtol=1e-4, atol=1e-5 * got.max())
    assert got.dtype == np.float32


def test_damping_makes_an_inverse_possible(rng):
    _, inputs = layer(rng, 3, 1, 12)                      # fewer inputs than columns
    inputs[:, 5] = 0
    factor = inverse_factor(gptq_hessian(inputs))
    np.testing.assert_array_equal(factor, np.triu(factor))
    np.testing.assert_allclose(factor.T @ factor @ gptq_hessian(inputs), np.eye(12), atol=1e-4)
    with pytest.raises(ModelError, match="larger damping"):
        inverse_factor(np.zeros((4, 4), np.float32))
    with pytest.raises(ModelError, match="larger damping"):
        inverse_factor(np.diag([1, -1, 1]).astype(np.float32))


def test_what_is_left_makes_up_best_for_what_is_fixed(rng):
    """After the first columns are fixed, those that are left are the solution of the least
    squares problem that has them for its unknowns."""
    weight, inputs = layer(rng, 40, 5, 9)
    hessian = gptq_hessian(inputs, damping=0)
    codes, scales, zeros = gptq_quantize(weight, hessian, 9)
    rounded = from_zero_points(codes, scales, zeros).dequantize().astype(np.float64)
    x, wide = inputs.astype(np.float64), weight.astype(np.float64)
    for fixed in range(1, 9):
        target = x @ wide.T - x[:, :fixed] @ rounded[:, :fixed].T
        best = np.linalg.lstsq(x[:, fixed:], target, rcond=None)[0].T        # (out, rest)
        exact = best[:, 0] / scales[:, 0] + zeros[:, 0]
        assert (np.abs(exact.clip(0, 15) - codes[:, fixed]) <= 0.5 + 0.02).all()


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([8, 16, 48]))
@settings(max_examples=25, deadline=None)
def test_outputs_are_better_than_with_the_nearest_codes(seed, act_order, group):
    weight, inputs = layer(np.random.default_rng(seed), 300, 24, 48)
    got = gptq_quantize(weight, gptq_hessian(inputs), group, act_order)
    ours = output_error(from_zero_points(*got).dequantize(), weight, inputs)
    assert ours < output_error(int4_codes(weight, group).dequantize(), weight, inputs)


def test_scales_of_act_order_are_the_weights_own(rng):
    weight, inputs = layer(rng, 100, 6, 32)
    _, scales, zeros = gptq_quantize(weight, gptq_hessian(inputs), 8, act_order=True)
    np.testing.assert_array_equal(scales, quantize_int4(weight, 8)[1])
    np.testing.assert_array_equal(zeros, quantize_int4(weight, 8)[2])


@pytest.mark.parametrize("inputs", [np.zeros((3, 4), np.float32),
                                    np.array([[1, np.nan]], np.float32)])
def test_inputs_without_meaning_are_refused(inputs):
    with pytest.raises(ModelError):
        gptq_hessian(inputs)


# --- AWQ ---


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 24]), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_scaling_is_never_worse_than_rounding_alone(seed, group, grid):
    weight, inputs = layer(np.random.default_rng(seed), 60, 16, 24)
    scale = awq_scale(weight, inputs, group, grid)
    assert (scale > 0).all() and scale.dtype == np.float32
    ours = output_error(int4_codes(weight * scale, group).dequantize() / scale, weight, inputs)
    plain = output_error(int4_codes(weight, group).dequantize(), weight, inputs)
    assert ours <= plain * (1 + 1e-5)


def test_columns_with_large_inputs_are_made_larger(rng):
    weight, inputs = layer(rng, 200, 32, 64)
    inputs[:, [3, 40]] *= 60
    scale = awq_scale(weight, inputs, 32)
    assert {*np.argsort(scale)[-2:].tolist()} == {3, 40}
    assert scale.max() * scale.min() == pytest.approx(1, rel=1e-5)


# --- whole models ---


@pytest.fixture(scope="module", params=["Llama", "Qwen2", "Qwen3", "Mistral"])
def tiny(request, tiny_model):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": 2}
    if request.param == "Mistral":
        sizes["sliding_window"] = 9
    hf, folder = tiny_model(request.param, 3, **sizes)
    return hf, Model.load(folder)


TEXTS = np.random.default_rng(5).integers(0, 211, (3, 25))


@pytest.mark.reference("products that go through `linear`")
def test_recorded_inputs_are_those_of_hugging_face(tiny):
    hf, model = tiny
    seen: dict[str, list] = {}
    block = hf.model.layers[1]
    for name, module in (("qkv_proj", block.self_attn.k_proj),
                         ("o_proj", block.self_attn.o_proj),
                         ("gate_up_proj", block.mlp.up_proj),
                         ("down_proj", block.mlp.down_proj)):
        module.register_forward_hook(lambda module, args, output, name=name:
                                     seen.setdefault(name, []).append(args[0].detach()))
    outputs = []
    block.register_forward_hook(lambda module, args, output: outputs.append(
        (output[0] if isinstance(output, tuple) else output).detach()))
    with torch.no_grad():
        hf(torch.from_numpy(TEXTS))
    weights = model.weights
    hidden = run_layer(model, weights.layers[0], 0, weights.embed_tokens[TEXTS])
    inputs, after = layer_inputs(model, weights.layers[1], 1, hidden)
    assert list(inputs) == list(MATRICES)
    for name, rows in inputs.items():
        theirs = torch.cat(seen[name]).reshape(rows.shape).numpy()
        np.testing.assert_allclose(rows, theirs, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after, torch.cat(outputs).reshape(after.shape).numpy(),
                               rtol=1e-3, atol=1e-3)
    assert type(weights.layers[1].qkv_proj) is np.ndarray


@pytest.mark.reference("products that go through `linear`")
def test_folding_the_scales_changes_nothing_before_rounding(tiny):
    _, model = tiny
    layer = model.weights.layers[0]
    hidden = model.weights.embed_tokens[TEXTS]
    inputs, wanted = layer_inputs(model, layer, 0, hidden)
    _, folded = METHODS["awq"](layer, inputs, 32)
    for name in ("input_layernorm", "post_attention_layernorm", "down_proj"):
        assert not np.array_equal(getattr(folded, name), getattr(layer, name)), name
    got = run_layer(model, folded, 0, hidden)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.reference("products that go through `linear`")
@pytest.mark.parametrize("method", METHODS)
def test_a_whole_model_is_nearer_than_with_the_nearest_codes(tiny, method):
    _, model = tiny
    before = [{name: getattr(layer, name).copy() for name in MATRICES}
              for layer in model.weights.layers]
    layers = list(rounded_layers(model, TEXTS, method, group_size=32))
    for layer, own in zip(model.weights.layers, before, strict=True):
        for name in MATRICES:
            np.testing.assert_array_equal(getattr(layer, name), own[name])
    hidden = model.weights.embed_tokens[TEXTS]
    for index, rounded in enumerate(layers):
        plain = replace(model.weights.layers[index], **{
            name: int4_codes(own, 32).dequantize() for name, own in before[index].items()})
        wanted = run_layer(model, model.weights.layers[index], index, hidden)
        plain_error = np.mean((run_layer(model, plain, index, hidden) - wanted) ** 2)
        assert rounded.error < plain_error
        for name in MATRICES:
            assert rounded.codes[name].bits == 4 and rounded.codes[name].group_size == 32
            np.testing.assert_array_equal(rounded.codes[name].dequantize(),
                                          getattr(rounded.weights, name))
        hidden = run_layer(model, rounded.weights, index, hidden)
    quantized = with_layers(model, layers)
    logits = [each.forward(TEXTS[0], np.arange(25), each.new_cache(25))
              for each in (model, quantized)]
    assert 0 < np.abs(logits[0] - logits[1]).mean() < 0.5 * logits[0].std()


@pytest.mark.parametrize("family", ["Mixtral", "GPT2", "Gemma3", "DeepseekV3"])
def test_other_families_are_refused(tiny_model, family):
    _, folder = tiny_model(family, 1)
    with pytest.raises(ModelError, match="round to the nearest"):
        next(rounded_layers(Model.load(folder), TEXTS, "gptq"))


def test_a_text_that_is_too_short_is_refused():
    assert calibration_texts(list(range(70)), length=16, count=9).shape == (4, 16)
    with pytest.raises(ModelError, match="it has 15 tokens, and 16 are needed"):
        calibration_texts(list(range(15)), length=16)


def test_recording_keeps_inputs_as_they_were(rng):
    """What is recorded is a copy, and a slice or a transpose records into the same list."""
    recorded = rng.standard_normal((5, 3)).view(calibration.Recorded)
    recorded.inputs = []
    x = rng.standard_normal((4, 3))
    kept, product = x.copy(), x @ recorded.T
    assert type(product) is np.ndarray
    x[:] = 0
    np.testing.assert_array_equal(recorded.inputs[0], kept)
    assert len(recorded.inputs) == 1
