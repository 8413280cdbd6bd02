"""A layer as an ONNX graph: the same numbers from another runtime. About 40 s."""

import sys
from pathlib import Path

import numpy as np
import pytest

from gearworks import onnx_export, viz
from gearworks.errors import ModelError, NotAvailableError
from gearworks.model import Model, decoder_layer, rotations
from gearworks.onnx_export import Node, OnnxModel, export_layer, nodes, open_session, run_layer
from gearworks.viz import FigureError

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
# Key/value heads of another number than query heads, and heads of another size than D/H
FAMILIES = [("Llama", {"head_dim": 10, "num_hidden_layers": 2}),
            ("Qwen2", {"tie_word_embeddings": True, "num_hidden_layers": 1}),
            ("Qwen3", {"head_dim": 14, "num_attention_heads": 4, "num_key_value_heads": 1,
                       "num_hidden_layers": 1})]


@pytest.fixture(scope="module")
def exported(tiny_model, tmp_path_factory):
    """A random Llama, and the file of its second layer."""
    _, folder = tiny_model("Llama", 21, head_dim=10)
    model, path = Model.load(folder), tmp_path_factory.mktemp("onnx") / "layer.onnx"
    export_layer(model.weights.layers[1], model.config, path)
    return model, path


@pytest.mark.parametrize("family, settings", FAMILIES)
def test_logits_are_those_of_the_engine(tiny_model, tmp_path, family, settings):
    hf, folder = tiny_model(family, 20, **settings)
    model = Model.load(folder)
    other = OnnxModel(model.config, model.weights, tmp_path)
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=14)
    for engine in (model, other):
        cache, parts = engine.new_cache(14), []
        for chunk in (slice(0, 9), slice(9, 10), slice(10, 14)):     # any number, after any
            parts.append(engine.forward(ids[chunk], np.arange(14)[chunk], cache))
        if engine is model:
            expected = np.concatenate(parts)
    got = np.concatenate(parts)
    assert len(cache) == 14 and got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)
    import torch
    with torch.no_grad():                                   # and Hugging Face's
        np.testing.assert_allclose(got, hf(torch.tensor([ids.tolist()])).logits[0].numpy(),
                                   atol=1e-4, rtol=0)


def test_one_layer_alone(exported):
    model, path = exported
    config, rng = model.config, np.random.default_rng(1)
    session = open_session(path, threads=1)
    for T, S in ((1, 0), (5, 0), (1, 30), (4, 7)):
        x = rng.standard_normal((T, config.hidden_size)).astype(np.float32)
        past = rng.standard_normal((2, config.num_key_value_heads, S, 10)).astype(np.float32)
        cos, sin = rotations(config, np.arange(S, S + T))
        cache = model.new_cache(S + T)
        cache.keys[1, :, :S], cache.values[1, :, :S], cache.lengths[1] = *past, S
        right = decoder_layer(x, model.weights.layers[1], config, cos, sin, cache, 1)
        y, keys, values = run_layer(session, x, cos, sin, *past)
        np.testing.assert_allclose(y, right, atol=1e-4)
        np.testing.assert_allclose(keys, cache.keys[1], atol=1e-5)
        np.testing.assert_allclose(values, cache.values[1], atol=1e-5)


def test_the_graph_has_the_layers_operators_and_weights(exported):
    model, path = exported
    found = nodes(path)
    used = {weight for node in found for weight in node.weights}
    assert {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "input_layernorm",
            "post_attention_layernorm"} <= used
    counted = onnx_export.operators(path)
    assert counted["MatMul"] == 4 and counted["Attention"] == 1
    assert counted["RMSNormalization"] == 2 and counted["Sigmoid"] == 1
    assert sum(counted.values()) == len(found)
    assert all(taken < place for place, node in enumerate(found) for taken in node.takes)
    figure = viz.operator_graph(found, "A layer")
    assert figure.html.count("<rect") == len(found)
    assert figure.html.count("<path") == sum(len(node.takes) for node in found)
    assert f"A layer: {len(found)} operators" in figure.words


def test_the_file_holds_the_weights_and_little_else(exported):
    model, path = exported
    layer = model.weights.layers[1]
    weights = sum(array.nbytes for array in vars(layer).values() if array is not None)
    size = sum(file.stat().st_size for file in Path(path).parent.iterdir())
    assert weights <= size <= weights + 60_000


@pytest.mark.parametrize("family, settings", [
    ("Gemma3", {}), ("Mixtral", {}), ("Mistral", {}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1})])
def test_layers_of_another_kind_are_refused(tiny_model, tmp_path, family, settings):
    _, folder = tiny_model(family, 22, **settings)
    model = Model.load(folder)
    with pytest.raises(ModelError, match="cannot export this model"):
        export_layer(model.weights.layers[0], model.config, tmp_path / "x.onnx")
    assert not [*tmp_path.iterdir()]


def test_without_the_packages_it_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(NotAvailableError, match="onnxruntime"):
        onnx_export.require_onnx()


@pytest.mark.parametrize("graph, why", [
    ([], "0 nodes"), ([Node("Add", (), ())] * 151, "151 nodes"),
    ([Node("Add", (), (0,))], "takes what comes after it"),
    ([Node("Add", (), ()), Node("Add", (), (-1,))], "takes what comes after it")])
def test_a_graph_that_is_none_is_not_drawn(graph, why):
    with pytest.raises(FigureError, match=why):
        viz.operator_graph(graph)
