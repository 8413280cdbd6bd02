"""Every family by every way of running a model: it gives what the NumPy engine gives, or is
refused by name. So the book's table is true."""

from dataclasses import replace

import numpy as np
import pytest
from test_parallel import together

from gearworks.comparison.compare import compare
from gearworks.config import SUPPORTED_ARCHITECTURES, ModelConfig
from gearworks.errors import ModelError
from gearworks.families.routes import ROUTES, runs, table
from gearworks.kv_cache import KVCache
from gearworks.model import Model
from gearworks.onnx_export import layer_module
from gearworks.parallel import ParallelModel
from gearworks.quantization.calibration import rounded_layers, with_layers
from gearworks.quantization.methods import round_model
from gearworks.quantization.quantized_cache import QuantizedKVCache
from gearworks.serving.paged_cache import PagedKVCache
from gearworks.serving.quantized_paged import QuantizedPagedKVCache

FAMILIES = [name.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
            for name in SUPPORTED_ARCHITECTURES]
# sizes that two processes can share, and whose rows are whole groups of 32
SIZES = {"vocab_size": 212, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
         "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
OWN = {"GPT2": {"vocab_size": 212, "n_embd": 64, "n_layer": 2, "n_head": 4},
       "Qwen3Moe": {"moe_intermediate_size": 32},
       "DeepseekV2": {"num_key_value_heads": 4, "topk_method": "greedy", "head_dim": None,
                      "moe_intermediate_size": 32, "kv_lora_rank": 32, "q_lora_rank": 32},
       "DeepseekV3": {"num_key_value_heads": 4, "head_dim": 6, "moe_intermediate_size": 32,
                      "kv_lora_rank": 32, "q_lora_rank": 32},
       # layers of other kinds than the first
       "Llama": {}, "Mistral": {"sliding_window": 9}}
LENGTH = 40
STEPS = [(0, 20), (20, 33), *((at, at + 1) for at in range(33, LENGTH))]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tiny_model):
    return made(tiny_model, request.param)


@pytest.fixture(scope="module", params=["Llama", "Qwen3", "SmolLM3"])
def biased(request, tiny_model):
    return made(tiny_model, request.param, attention_bias=True)


def made(tiny_model, family, **more):
    """A family's name, Hugging Face's model, its folder, ours, ids, and ours' logits."""
    settings = OWN["GPT2"] if family == "GPT2" else SIZES | OWN.get(family, {}) | more
    hf_model, folder = tiny_model(family, 17, **{
        name: value for name, value in settings.items() if value is not None})
    model = Model.load(folder)
    ids = np.random.default_rng(4).integers(0, 212, LENGTH)
    expected = whole(model, ids, KVCache(model.config, LENGTH))
    assert np.abs(expected).max() > 0.5
    return model.config.architecture, hf_model, folder, model, ids, expected


def whole(model, ids, cache) -> np.ndarray:
    """A prompt in two pieces, then token by token."""
    return np.concatenate([np.array(model.forward(ids[start:end], np.arange(start, end), cache))
                           for start, end in STEPS])


def through_blocks(model, ids, memory) -> np.ndarray:
    """The same, over the memory of an engine, beside another sequence."""
    other = np.random.default_rng(5).integers(0, 212, LENGTH)
    tables, found = [[9, 2, 7, 0, 5, 11], [1, 3, 4, 6, 8, 10]], []
    for start, end in STEPS:
        count = end - start
        batch = memory.batch(tables, [start, start], [count, count])
        positions = np.tile(np.arange(start, end), 2)
        logits = model.forward(np.concatenate([ids[start:end], other[start:end]]), positions,
                               batch)
        found.append(logits[:count])
    return np.concatenate(found)


def numpy_engine(case):
    _, _, _, model, ids, expected = case
    memory = PagedKVCache(model.config, 12, 8)
    np.testing.assert_allclose(through_blocks(model, ids, memory), expected, rtol=0, atol=2e-5)


def comparison(case):
    _, hf_model, _, model, ids, _ = case
    assert compare(model, hf_model, ids).divergence is None


def quantized_caches(case):
    _, _, _, model, ids, expected = case
    spread = expected.std()
    for bits, error in ((8, 0.1), (4, 0.8)):
        for found in (whole(model, ids, QuantizedKVCache(model.config, LENGTH, bits, 8)),
                      through_blocks(model, ids,
                                     QuantizedPagedKVCache(model.config, 12, 8, bits))):
            assert 0 < np.abs(found - expected).mean() < error * spread


def compiled(case):
    pytest.importorskip("numba")
    from gearworks.kernels.cpu.model import CompiledModel
    _, _, folder, _, ids, expected = case
    for mode in ("exact", "fast"):                          # of float32 weights, both are exact
        model = CompiledModel.load(folder, mode)
        found = whole(model, ids, model.new_cache(LENGTH))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def torch_engine(case):
    pytest.importorskip("torch")
    from gearworks.kernels.torch_model import TorchModel
    _, _, folder, _, ids, expected = case
    model = TorchModel.load(folder, "cpu", "float32")
    np.testing.assert_allclose(whole(model, ids, model.new_cache(LENGTH)), expected, rtol=0,
                               atol=1e-4)


def several_processes(case):
    _, _, folder, _, ids, expected = case

    def work(group):
        model = ParallelModel.load(folder, group)
        return whole(model, ids, model.new_cache(LENGTH))
    for found in together(work, 2):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def rounded(case):
    _, _, _, model, ids, expected = case
    found = whole(round_model(model, "int8", 32).model, ids, KVCache(model.config, LENGTH))
    assert 0 < np.abs(found - expected).mean() < 0.2 * expected.std()


def calibrated(case):
    _, _, _, model, ids, expected = case
    for method in ("gptq", "awq"):
        layers = list(rounded_layers(model, ids.reshape(2, -1), method))
        found = whole(with_layers(model, layers), ids, KVCache(model.config, LENGTH))
        assert 0 < np.abs(found - expected).mean() < expected.std()


def written(case):
    """A family's name in such a file; what else it could not say, saving refuses."""
    config = replace(case[3].config, windows=())
    metadata = config.to_gguf() | {"tokenizer.ggml.tokens": ["x"] * config.vocab_size}
    back = ModelConfig.from_gguf(metadata, config.tie_word_embeddings)
    assert replace(back, architecture=config.architecture) == config


def onnx(case):
    """The layer's module, without which there is no file; a window is refused as well."""
    config, weights = case[3].config, case[3].weights
    layer_module(weights.layers[0], replace(config, windows=()))


TRIES = {"numpy": numpy_engine, "compare": comparison, "kv": quantized_caches,
         "compiled": compiled, "torch": torch_engine, "parallel": several_processes,
         "round": rounded, "calibrate": calibrated, "write": written, "onnx": onnx}


@pytest.mark.parametrize("route", TRIES)
def test_a_cell_of_the_table(case, route):
    architecture = case[0]
    if runs(route, architecture):
        TRIES[route](case)
        return
    with pytest.raises(ModelError) as refused:
        TRIES[route](case)
    assert architecture in str(refused.value)


@pytest.mark.parametrize("route", [name for name in TRIES if name != "write"])
def test_families_run_with_attention_bias_where_they_do_without(biased, route):
    """But for files in GGUF, whose keys cannot say it."""
    assert biased[3].weights.layers[0].o_bias.any()
    if runs(route, biased[0]):
        TRIES[route](biased)


def test_every_way_is_tried():
    # files in GGUF are test_gguf_families.py's
    assert set(TRIES) == set(ROUTES) - {"gguf"}
    head, rows = table()
    assert [row[0] for row in rows] == list(SUPPORTED_ARCHITECTURES)
    assert all(len(row) == len(head) for row in rows)
    assert {cell for row in rows for cell in row[1:]} == {"yes", "refused"}
