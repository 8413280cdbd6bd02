"""The arithmetic of cost against Hugging Face's counts, PyTorch's FLOP counter,
and files of known size. About 15 s."""

import json
from dataclasses import asdict, fields, replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import (AutoModelForCausalLM, DynamicCache, LlamaConfig, MistralConfig,
                          PreTrainedConfig, Qwen2Config, Qwen3Config)

from gearworks.accounting import (BLOCKS, SHAPES, ModelShape, arithmetic_intensity, bytes_moved,
                                  forward_flops, memory_bytes, parameter_count,
                                  roofline_tokens_per_second, stored_bytes)
from gearworks.config import to_hf
from gearworks.errors import ModelError
from gearworks.formats.gguf import GGUFFile, TensorType
from gearworks.kv_cache import KVCache

FAMILIES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config,
            "qwen3": Qwen3Config}


def hf_parameter_count(config: PreTrainedConfig) -> int:
    with torch.device("meta"):            # shapes without memory, for 70 billion parameters too
        return AutoModelForCausalLM.from_config(config).num_parameters()


def family_of(name: str) -> str:
    return {"Qwen2": "qwen2", "Qwen3": "qwen3", "Mistr": "mistral"}.get(name[:5], "llama")


def hf_config(family: str, shape: ModelShape) -> PreTrainedConfig:
    sizes = {name: value for name, value in asdict(shape).items()
             if not name.endswith(("_bias", "qk_norm"))}
    if family == "qwen2":
        del sizes["head_dim"]                         # this family has none: it is always D / H
    extra = {"attention_bias": shape.o_bias} if family in ("llama", "qwen3") else {}
    extra |= {"mlp_bias": shape.mlp_bias} if family == "llama" else {}
    return FAMILIES[family](**sizes, **extra)


@pytest.mark.parametrize("name", SHAPES)
def test_published_models_have_hf_parameters(name):
    config = hf_config(family_of(name), SHAPES[name])
    assert ModelShape.from_hf(config.to_dict()) == SHAPES[name]
    assert parameter_count(SHAPES[name]) == hf_parameter_count(config)


@settings(max_examples=25, deadline=None)
@given(family=st.sampled_from(sorted(FAMILIES)), kv_heads=st.integers(1, 3),
       group=st.integers(1, 3), half=st.integers(1, 6), extra=st.integers(0, 9),
       vocab=st.integers(5, 40), wide=st.integers(3, 30), layers=st.integers(1, 3),
       tied=st.booleans(), bias=st.booleans(), mlp_bias=st.booleans())
def test_parameters_equal_hf_on_any_shape(family, kv_heads, group, half, extra, vocab, wide,
                                          layers, tied, bias, mlp_bias):
    heads = kv_heads * group
    width = 2 * half if family == "qwen2" else 2 * half + extra  # of the hidden state, per head
    config = {"vocab_size": vocab, "hidden_size": heads * width, "intermediate_size": wide,
              "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "head_dim": 2 * half,
              "tie_word_embeddings": tied, "pad_token_id": None, "bos_token_id": 1,
              "eos_token_id": 2}
    if family == "qwen2":
        del config["head_dim"]
    if family in ("llama", "qwen3"):
        config["attention_bias"] = bias
    if family == "llama":
        config["mlp_bias"] = mlp_bias
    hf = FAMILIES[family](**config)
    assert parameter_count(ModelShape.from_hf(hf.to_dict())) == hf_parameter_count(hf)


@pytest.mark.parametrize("change, complaint",
                         [({"model_type": "mamba"}, "(?s)mamba.*qwen3"),
                          ({"model_type": None}, "None"), ({"vocab_size": ...}, "vocab_size")],
                         ids=["family", "none", "missing"])
def test_configurations_that_cannot_be_counted_are_refused(change, complaint):
    config = LlamaConfig().to_dict() | change
    config = {name: value for name, value in config.items() if value is not ...}
    with pytest.raises(ModelError, match=complaint):
        ModelShape.from_hf(config)


def test_the_engine_s_own_configuration_is_counted(smollm2):
    shape = ModelShape.from_hf(to_hf.hf_config(smollm2.model.config))
    assert shape == SHAPES["SmolLM2-135M"]
    assert memory_bytes(shape, "float32")["weights"] == smollm2.model.weights.nbytes()


def test_the_cache_takes_what_is_said(smollm2):
    cache = KVCache(smollm2.model.config, 37)
    said = memory_bytes(SHAPES["SmolLM2-135M"], "float32", tokens=37, cache_dtype="float32")
    assert cache.keys.nbytes + cache.values.nbytes == said["kv_cache"]


def test_blocks_are_those_of_the_file(smollm2_gguf):
    """Tensor by tensor, the GGUF file's data take the bytes that its storage types take."""
    storage = {TensorType.F32: "float32", TensorType.Q4_1: "q4_1", TensorType.Q8_0: "q8_0"}
    with GGUFFile.open(smollm2_gguf) as file:
        tensors = list(file.tensors.values())
    assert {tensor.type for tensor in tensors} == storage.keys()
    for tensor in tensors:
        assert stored_bytes(prod(tensor.shape), storage[tensor.type]) == tensor.nbytes


@pytest.mark.parametrize("dtype", BLOCKS)
def test_stored_bytes_grow_by_whole_blocks(dtype):
    numbers, size = BLOCKS[dtype]
    counts = (0, 1, numbers, numbers + 1, 5 * numbers)
    assert ([stored_bytes(count, dtype) for count in counts]
            == [0, size, size, 2 * size, 5 * size])


def test_unknown_storage_types_are_refused():
    for call in (lambda: stored_bytes(1, "float13"),
                 lambda: memory_bytes(SHAPES["SmolLM2-135M"], "q5"),
                 lambda: memory_bytes(SHAPES["SmolLM2-135M"], "q4_0", 1, "q5")):
        with pytest.raises(ModelError, match="(?s)no storage type.*q4_0"):
            call()


FOLKLORE = [("Llama-2-7B", 65_536, 34.4), ("Mistral-7B", 65_536, 8.6),
            ("Qwen2.5-7B", 65_536, 3.8),
            ("Llama-2-70B", 2_048, 0.67)]


@pytest.mark.parametrize("name, tokens, gigabytes", FOLKLORE, ids=lambda value: str(value))
def test_caches_that_people_talk_about(name, tokens, gigabytes):
    assert (memory_bytes(SHAPES[name], "float16", tokens)["kv_cache"] / 1e9
            == pytest.approx(gigabytes, abs=0.05))


def test_70_billion_in_four_bits():
    shape = SHAPES["Llama-2-70B"]
    multi_head = replace(shape, num_key_value_heads=shape.num_attention_heads)
    assert (memory_bytes(multi_head, "float16", 2_048)["kv_cache"] / 1e9
            == pytest.approx(5.4, abs=0.05))
    assert stored_bytes(70_000_000_000, "int4") == 35e9
    assert ([round(memory_bytes(shape, dtype)["weights"] / 1e9, 1)
             for dtype in ("q4_0", "q4_1")] == [38.8, 43.1])


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("new, past", [(1, 0), (1, 23), (11, 0), (5, 8)], ids=str)
def test_flops_equal_pytorch_s_counter(family, new, past):
    """PyTorch counts the masked products too: those, and only those, are the difference."""
    head_dim = {} if family == "qwen2" else {"head_dim": 10}
    config = FAMILIES[family](vocab_size=61, hidden_size=48, intermediate_size=37,
                              num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                              attn_implementation="eager", **head_dim)
    model = AutoModelForCausalLM.from_config(config).eval()
    cache = DynamicCache(config=config)
    with torch.no_grad():
        if past:
            model(torch.randint(61, (1, past)), None, None, cache)
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.randint(61, (1, new)), None, None, cache, logits_to_keep=1)
    shape = ModelShape.from_hf(config.to_dict())
    masked = (new * (new - 1) // 2 * 4 * shape.num_attention_heads * shape.head_dim
              * shape.num_hidden_layers)
    rope = counter.get_total_flops() - forward_flops(shape, new, past) - masked
    # transformers makes RoPE's angles with a product of d/2 frequencies and the positions
    assert rope in (0, 2 * new * (shape.head_dim // 2))


def test_a_prompt_costs_the_same_in_chunks():
    shape = SHAPES["Qwen3-0.6B"]
    whole = forward_flops(shape, 600)
    assert forward_flops(shape, 512, logit_rows=0) + forward_flops(shape, 88, 512) == whole


def test_a_batch_moves_the_weights_once():
    shape = SHAPES["Llama-2-7B"]
    one, eight = (bytes_moved(shape, "float16", batch, past_tokens=999) for batch in (1, 8))
    assert eight - one == 7 * memory_bytes(shape, "float16", 1000)["kv_cache"]
    table = shape.vocab_size * shape.hidden_size
    held = memory_bytes(shape, "float16", 1)
    assert bytes_moved(shape, "float16") == held["weights"] - 2 * table + held["kv_cache"]
    tied = SHAPES["SmolLM2-135M"]
    assert bytes_moved(tied, "float16") == sum(memory_bytes(tied, "float16", 1).values())


def test_the_roofline_has_two_sides():
    shape, step = SHAPES["Llama-2-7B"], {"bandwidth": 2e12, "flops_per_second": 300e12}
    for work in ({}, {"batch": 8, "past_tokens": 4000}, {"batch": 4000}, {"new_tokens": 3000}):
        speed = roofline_tokens_per_second(shape, "float16", **step, **work)
        flops = (work.get("batch", 1)
                 * forward_flops(shape, work.get("new_tokens", 1), work.get("past_tokens", 0)))
        seconds = work.get("batch", 1) * work.get("new_tokens", 1) / speed
        intensity = arithmetic_intensity(shape, "float16", **work)
        assert flops / seconds == pytest.approx(min(300e12, 2e12 * intensity))
    prompt = arithmetic_intensity(shape, "float16", new_tokens=3000)
    assert prompt > 150 > arithmetic_intensity(shape, "float16", batch=8)


def test_a_shape_is_plain_facts():
    assert {field.type for field in fields(ModelShape)} <= {int, bool}


def test_the_converted_folder_says_the_same(smollm2_folder):
    config = json.loads((smollm2_folder / "config.json").read_text(encoding="utf-8"))
    assert ModelShape.from_hf(config) == SHAPES["SmolLM2-135M"]
