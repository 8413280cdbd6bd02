"""GGUF files of every architecture that is read from them,
written with the `gguf` package and its own tensor names."""

import math
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from gearworks import backends
from gearworks.config import gguf_architectures, gguf_settings
from gearworks.config import ModelConfig
from gearworks.config.gguf_settings import heeded
from gearworks.config.to_hf import hf_config
from gearworks.errors import GearworksError, ModelError
from gearworks.formats.gguf import BLOCK_FORMATS, GGUFFile
from gearworks.hub import convert
from gearworks.language_model import gguf_eos_ids
from gearworks.model import Model
from gearworks.sentencepiece import AnyTokenizer
from gearworks.weights import open_checkpoint

README = Path(__file__).resolve().parents[2] / "README.md"
ARCHITECTURES = {"Llama": gguf.MODEL_ARCH.LLAMA, "Mistral": gguf.MODEL_ARCH.LLAMA,
                 "Mixtral": gguf.MODEL_ARCH.LLAMA, "Qwen2": gguf.MODEL_ARCH.QWEN2,
                 "Qwen3": gguf.MODEL_ARCH.QWEN3, "Qwen3Moe": gguf.MODEL_ARCH.QWEN3MOE,
                 "Phi3": gguf.MODEL_ARCH.PHI3, "SmolLM3": gguf.MODEL_ARCH.SMOLLM3,
                 "Olmo2": gguf.MODEL_ARCH.OLMO2, "GptOss": gguf.MODEL_ARCH.GPT_OSS,
                 "Gemma2": gguf.MODEL_ARCH.GEMMA2,
                 "Gemma3": gguf.MODEL_ARCH.GEMMA3, "GPT2": gguf.MODEL_ARCH.GPT2,
                 "DeepseekV2": gguf.MODEL_ARCH.DEEPSEEK2,
                 "DeepseekV3": gguf.MODEL_ARCH.DEEPSEEK2}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as converters write them for the llama architecture."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add(writer, key, value):
    types = gguf.GGUFValueType
    kind = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING,
            list: types.ARRAY}[type(value)]
    writer.add_key_value(key, value, kind, types.INT32 if kind == types.ARRAY else None)


def add_settings(writer, family, config):
    """The keys that a converter writes for a model, but for those of scaled RoPE."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if family == "GPT2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family.startswith("Deepseek"):
        add_deepseek(writer, family, config)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if getattr(config, "head_dim", None)
                          else config.hidden_size // config.num_attention_heads)
    if family in ("Gemma2", "Gemma3", "GptOss") or (family in ("Mistral", "Mixtral", "Phi3")
                                          and config.sliding_window):
        writer.add_sliding_window(config.sliding_window)
    if family == "Gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family == "Phi3":
        add_phi3(writer, config, rope)
    if family in ("Mixtral", "Qwen3Moe", "GptOss"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if family == "GptOss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if family == "Qwen3Moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def add_phi3(writer, config, rope):
    """What of a head turns, and how; whose factors are tensors, converters give no type."""
    context = config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(context)
    writer.add_rope_dimension_count(int(config.hidden_size // config.num_attention_heads
                                        * rope["partial_rotary_factor"]))
    if rope["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / context
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch)
                                                       / math.log(context)))
        for texts in ("long", "short"):
            writer.add_tensor(f"rope_factors_{texts}.weight",
                              np.array(rope[f"{texts}_factor"], np.float32))


def add_deepseek(writer, family, config):
    """As converters write it since the cache of such a model is one of latents."""
    turning, still = config.qk_rope_head_dim, config.qk_nope_head_dim
    writer.add_rope_dimension_count(turning)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + turning)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(still + turning)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if family == "DeepseekV3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if family == "DeepseekV3" or config.topk_method != "greedy":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if (scale := config.rope_parameters.get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scale)


def as_converted(family, hf_model, folder, permute=None, mla=True, stacked=True):
    """The tensors of a model by GGUF's names, from the file that Hugging Face has written."""
    config, architecture = hf_model.config, ARCHITECTURES[family]
    tensors = load_file(folder / "model.safetensors")
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name in list(tensors):
        expert = re.fullmatch(r"(.+\.experts)\.(\d+)(\..+)", name)
        if expert:
            experts.setdefault(expert[1] + expert[3], {})[int(expert[2])] = tensors.pop(name)
    tensors |= {name: np.stack([each[number] for number in range(len(each))])
                for name, each in experts.items()}
    is_permuted = (family in ("Llama", "Mistral", "Mixtral", "SmolLM3") if permute is None
                   else permute)
    for name in [name for name in tensors if family == "GptOss" and ".experts." in name]:
        array, bias = tensors.pop(name), name.endswith("_bias")
        array = array if bias else array.swapaxes(1, 2)
        whole = name.removesuffix("_bias") + (".bias" if bias else ".weight")
        parts = {whole: array}
        if "gate_up" in whole:
            parts = {whole.replace("gate_up", "gate"): array[:, ::2],
                     whole.replace("gate_up", "up"): array[:, 1::2]}
        tensors |= parts
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    converted = {}
    for name, array in tensors.items():
        if family.startswith("Gemma") and name.endswith("norm.weight"):
            array = array + 1
        if family == "GPT2":
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            if re.search(r"\.c_(attn|proj|fc)\.weight$", name):
                array = array.T
        for part, heads in (("q_proj", "num_attention_heads"),
                            ("k_proj", "num_key_value_heads")):
            if is_permuted and name.endswith(f"{part}.weight"):
                array = permuted(array, getattr(config, heads))
        parts = {name.replace("e_score_correction_bias", "e_score_correction.bias"): array}
        if name.endswith("sinks"):
            parts = {f"{name}.weight": array}
        if name.endswith("kv_b_proj.weight") and mla:
            heads = array.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
            still = config.qk_nope_head_dim
            parts = {name.replace("kv_b", "k_b"): heads[:, :still].swapaxes(1, 2),
                     name.replace("kv_b", "v_b"): heads[:, still:]}
        for name, array in parts.items():
            converted[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    if not stacked:                     # as files were written before April 2024
        for name in [name for name in converted if "_exps." in name]:
            converted |= {name.replace("_exps.", f".{number}."): array
                          for number, array in enumerate(converted.pop(name))}
    return converted


def write_gguf(path, family, model, permute=None, mla=True, stacked=True, more_tensors=(),
               notes=(), types=(), **extra):
    """What a converter makes of a model, in float32.

    model: Hugging Face's and its folder. permute: whether rows of q and k are; by default as it
    should be. extra: keys of the model, without its architecture; notes: other keys. types:
    (end of a tensor's name, how it is stored) pairs.
    """
    hf_model, folder = model
    name = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[family]]
    writer = gguf.GGUFWriter(path, name)
    add_settings(writer, family, hf_model.config)
    if not mla:
        for key in ("attention.head_count_kv", "attention.key_length", "attention.value_length",
                    "attention.key_length_mla", "attention.value_length_mla"):
            writer.kv_data[0].pop(f"{name}.{key}")
        writer.add_head_count_kv(hf_model.config.num_attention_heads)
        writer.add_key_length(hf_model.config.qk_nope_head_dim
                              + hf_model.config.qk_rope_head_dim)
        writer.add_value_length(hf_model.config.v_head_dim)
    for key, value in extra.items():
        writer.kv_data[0].pop(f"{name}.{key}", None)
        add(writer, f"{name}.{key}", value)
    for key, value in dict(notes).items():
        add(writer, key, value)
    writer.add_token_list([str(id) for id in range(hf_model.config.vocab_size)])
    tensors = as_converted(family, hf_model, folder, permute, mla, stacked)
    for name, array in (tensors | dict(more_tensors)).items():
        kind = next((kind for end, kind in types if name.endswith(end)), None)
        array = np.ascontiguousarray(array)
        if kind is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model, ids):
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


def hf_logits(model, ids):
    with torch.no_grad():
        return model[0](torch.from_numpy(ids)[None]).logits[0].numpy()


GPT_OSS_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False,
                "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64}


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.3, 0.9], "long_factor": [1.5, 4.0, 9.0]}


def yarn_keys(settings):
    """What a file says of the YaRN that a configuration has."""
    rope = settings.get("rope_parameters", {})
    if rope.get("rope_type") != "yarn":
        return {}
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            **{f"rope.scaling.yarn_{key}": rope[key] for key in ("beta_fast", "beta_slow")
               if key in rope}}


@pytest.mark.parametrize(
    "family, settings",
    [("Llama", {"head_dim": 10}),
     ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
     ("Qwen2", {}), ("Qwen2", {"tie_word_embeddings": True}), ("Qwen3", {"head_dim": 14}),
     ("Gemma3", {"num_hidden_layers": 7, "query_pre_attn_scalar": 10}),
     ("Mistral", {"sliding_window": 9}), ("Mistral", {"sliding_window": None, "head_dim": 14}),
     ("Mixtral", {}), ("Mixtral", {"sliding_window": 10, "tie_word_embeddings": True}),
     ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "head_dim": 10}),
     ("Qwen3Moe", {"norm_topk_prob": True}),
     ("Qwen3Moe", {"norm_topk_prob": True, "num_experts": 4, "num_key_value_heads": 1,
                   "moe_intermediate_size": 90, "tie_word_embeddings": True}),
     ("Phi3", {}), ("Phi3", {"tie_word_embeddings": True, "sliding_window": 9}),
     ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 131}),
     ("SmolLM3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}),
     ("SmolLM3", {"no_rope_layer_interval": 4, "head_dim": 14, "tie_word_embeddings": False}),
     ("GptOss", {"rope_parameters": GPT_OSS_ROPE}),
     ("GptOss", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
                 "num_hidden_layers": 4, "num_local_experts": 3, "num_experts_per_tok": 3,
                 "tie_word_embeddings": True}),
     ("Gemma2", {"query_pre_attn_scalar": 10}),
     ("Olmo2", {}), ("Olmo2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
     ("GPT2", {}), ("GPT2", {"n_inner": 48}), ("GPT2", {"tie_word_embeddings": False}),
     ("DeepseekV2", {"topk_method": "greedy"}),
     ("DeepseekV2", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}),
     ("DeepseekV2", {"topk_method": "greedy", "q_lora_rank": None, "n_shared_experts": 1}),
     ("DeepseekV2", {"topk_method": "greedy",
                     "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}}),
     ("DeepseekV3", {}),
     ("DeepseekV3", {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 0,
                     "norm_topk_prob": False, "qk_nope_head_dim": 4, "v_head_dim": 5}),
     ("DeepseekV3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
                     "tie_word_embeddings": True}),
     ("Llama", {"rope_parameters": YARN}),
     ("Qwen2", {"rope_parameters": YARN | {"beta_fast": 40.0, "beta_slow": 2.0}})], ids=str)
def test_logits_equal_hf(tmp_path, tiny_model, rng, family, settings):
    model = tiny_model(family, 21, **settings)
    write_gguf(tmp_path / "model.gguf", family, model, **yarn_keys(settings))
    ids = rng.integers(0, 211, 130)
    ours = Model.load(tmp_path / "model.gguf")
    np.testing.assert_allclose(logits(ours, ids), hf_logits(model, ids), rtol=0, atol=1e-4)
    cache, parts = ours.new_cache(len(ids)), np.split(np.arange(len(ids)), [1, 2, 40, 41])
    steps = [ours.forward(ids[part], part, cache) for part in parts]
    np.testing.assert_allclose(np.concatenate(steps), hf_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family, settings", [
    ("Llama", {"head_dim": 10, "rope_parameters": YARN}), ("Mistral", {"sliding_window": 9}),
    ("Mixtral", {}), ("Qwen2", {}), ("Qwen3", {"head_dim": 14}),
    ("Qwen3Moe", {"norm_topk_prob": True}), ("GPT2", {"n_inner": 48}),
    ("SmolLM3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5}), ("Olmo2", {}),
    ("Gemma2", {"query_pre_attn_scalar": 10}),
    ("GptOss", {"rope_parameters": GPT_OSS_ROPE}), ("Phi3", {"sliding_window": 9}),
    ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 40}),
    ("Gemma3", {"num_hidden_layers": 7, "query_pre_attn_scalar": 10}),
    ("DeepseekV2", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}),
    ("DeepseekV2", {"topk_method": "greedy", "q_lora_rank": None}),
    ("DeepseekV3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}})],
    ids=str)
def test_hugging_face_loads_what_is_made_of_it(tmp_path, tiny_model, rng, monkeypatch, family,
                                               settings):
    """The folder that `gearworks compare` makes of such a file is the model that it was."""
    # these files have a list of tokens, and no tokenizer
    monkeypatch.setattr(convert, "folder_contents",
                        lambda file, config: {"config.json": hf_config(config)})
    model = tiny_model(family, 29, **settings)
    write_gguf(tmp_path / "model.gguf", family, model, **yarn_keys(settings))
    convert.convert_gguf(tmp_path / "model.gguf", tmp_path / "hf")
    ids = rng.integers(0, 211, 90)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    back.config._experts_implementation = "eager"   # the fast one takes sizes that 4 divides
    np.testing.assert_allclose(hf_logits((back,), ids), hf_logits(model, ids), rtol=0,
                               atol=1e-4)
    config = open_checkpoint(tmp_path / "model.gguf")[0]
    assert ModelConfig.from_hf(hf_config(config)) == config


@pytest.mark.parametrize("family, ways", [
    ("DeepseekV2", {"mla": False}), ("DeepseekV3", {"mla": False}),
    ("Mixtral", {"stacked": False})], ids=str)
def test_files_of_older_converters_are_read(tmp_path, tiny_model, rng, family, ways):
    """DeepSeek's keys and values in one tensor, each expert in a tensor of its own."""
    own = {"topk_method": "greedy"} if family == "DeepseekV2" else {}
    model = tiny_model(family, 24, **own)
    write_gguf(tmp_path / "model.gguf", family, model, **ways)
    ids = rng.integers(0, 211, 50)
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids),
                               hf_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "DeepseekV3", "GPT2"])
def test_quantized_experts_are_the_matrices_that_the_package_reads(tmp_path, tiny_model,
                                                                   family):
    """Types of one file may differ, and each expert's blocks are its own."""
    sizes = ({"n_embd": 64, "n_head": 4} if family == "GPT2" else
             {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96})
    kinds = gguf.GGMLQuantizationType
    write_gguf(tmp_path / "model.gguf", family, tiny_model(family, 27, **sizes), types=[
        ("_gate_exps.weight", kinds.Q4_0), ("_up_exps.weight", kinds.Q8_0),
        ("_down_exps.weight", kinds.Q5_1), ("attn_qkv.weight", kinds.Q8_0),
        ("ffn_down.weight", kinds.Q4_1)])
    config, file = open_checkpoint(tmp_path / "model.gguf")
    stored = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
              for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    turned = family == "GPT2"           # whose matrices Hugging Face has as (in, out)
    looked_at = 0
    for name in file.tensors:
        array = file.tensor(name)
        out = np.full(array.shape[::-1], np.nan, np.float32).T
        np.testing.assert_array_equal(file.tensor(name, out=out), array)
        expert = re.fullmatch(r"(.+)\.(\d+)\.weight", name)
        if expert is not None:
            expected = stored[f"{expert[1]}_exps.weight"][int(expert[2])]
        elif name in stored:
            expected = stored[name]
            if turned and array.ndim == 2 and name.startswith("blk."):
                expected = expected.T
        else:
            continue                    # DeepSeek's keys and values, which are joined
        np.testing.assert_array_equal(array, expected)
        looked_at += 1
    assert looked_at >= len(file.tensors) - 3


def test_gpt_oss_as_it_is_published(tmp_path, tiny_model, rng):
    """Experts in MXFP4, gate and up apart."""
    mxfp4 = gguf.GGMLQuantizationType.MXFP4
    model = tiny_model("GptOss", 28, hidden_size=64, intermediate_size=96,
                       rope_parameters=GPT_OSS_ROPE)
    write_gguf(tmp_path / "model.gguf", "GptOss", model, types=[("_exps.weight", mxfp4)],
               **yarn_keys({"rope_parameters": GPT_OSS_ROPE}))
    for layer in model[0].model.layers:
        for weights in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            rows = weights.detach().swapaxes(1, 2).contiguous().numpy()
            rounded = gguf.quants.dequantize(gguf.quants.quantize(rows, mxfp4), mxfp4)
            weights.data = torch.from_numpy(rounded).swapaxes(1, 2)
    ids = rng.integers(0, 211, 60)
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids),
                               hf_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_only_llama_files_are_permuted(tmp_path, tiny_model, rng, family):
    """With the rows the other way round the model still runs, and says something else."""
    _, folder = model = tiny_model(family, 22)
    write_gguf(tmp_path / "model.gguf", family, model, permute=family != "Llama")
    ids = rng.integers(0, 211, 50)
    assert (np.abs(logits(Model.load(tmp_path / "model.gguf"), ids)
                   - logits(Model.load(folder), ids)).max() > 0.1)


def test_linear_rope_scaling_is_read(tmp_path, tiny_model, rng):
    _, folder = model = tiny_model(
        "Llama", 23, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
    write_gguf(tmp_path / "model.gguf", "Llama", model, **{"rope.scaling.factor": 4.0})
    ids = rng.integers(0, 211, 50)
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids),
                               logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("keys, factor", [
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
    ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 1.0, "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
    ({"rope.scale_linear": 4.0}, 4.0), ({"rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.attn_factor": 1.0}, 1.0),
], ids=str)
def test_rope_is_scaled_as_llama_cpp_scales_it(tmp_path, tiny_model, rng, keys, factor):
    """The type "none" scales nothing; the old key counts only where the new one is missing."""
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": factor}
    _, folder = whole = tiny_model("Llama", 23, rope_parameters=rope)
    write_gguf(tmp_path / "model.gguf", "Llama", whole, **keys)
    ids, model = rng.integers(0, 211, 50), Model.load(tmp_path / "model.gguf")
    assert (model.config.rope_scaling is None) == (factor == 1)
    np.testing.assert_allclose(logits(model, ids), logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("key, value", [
    ("rope.scaling.attn_factor", 2.0), ("rope.scaling.type", "longrope"),
    ("rope.scaling.yarn_attn_factor", 2.0), ("rope.scaling.yarn_log_multiplier", 0.1),
    ("expert_gating_func", 2), ("expert_shared_count", 1),
    ("rope.scaling.yarn_ext_factor", 1.0), ("attention.causal", False),
    ("attention.scale", 0.3),
    ("logit_scale", 0.5), ("rope.freq_base_swa", 1e4), ("rope.dimension_sections", [2, 2]),
    ("attention.key_length_swa", 4), ("invented_in_2027", "yes"),
])
def test_what_is_not_computed_is_refused_by_its_key_and_value(tmp_path, tiny_model, key, value):
    write_gguf(tmp_path / "model.gguf", "Llama", tiny_model("Llama", 26), **{key: value})
    with pytest.raises(ModelError) as error:
        Model.load(tmp_path / "model.gguf")
    assert f"llama.{key} is " in error.value.why and repr(value)[:2] in error.value.why


def test_what_says_nothing_hinders_nothing(tmp_path, tiny_model, rng):
    """Keys that are off, of another family, notes of programs: the same logits as without."""
    _, folder = whole = tiny_model("Llama", 26)
    write_gguf(tmp_path / "model.gguf", "Llama", whole, **{
        "attention.causal": True, "logit_scale": 0.0, "attention.scale": 0.0, "expert_count": 0,
        "expert_used_count": 0, "use_parallel_residual": False,
        "rope.dimension_sections": [0, 0, 0, 0],
        "rope.scaling.yarn_log_multiplier": 0.0, "tensor_data_layout": "Meta AI original pth",
        "vocab_size": 211, "pooling_type": 3}, notes={
        "general.type": "model", "general.name": "x", "general.sampling.temp": 0.6,
        "quantize.imatrix.chunks_count": 128, "gemma3.logit_scale": 0.5, "split.count": 1,
        "split.no": 0, "split.tensors.count": 30, "mine": "x",
        "tokenizer.chat_template.tool_use": "x", "tokenizer.ggml.padding_token_id": 3})
    ids, model = rng.integers(0, 211, 50), Model.load(tmp_path / "model.gguf")
    np.testing.assert_allclose(logits(model, ids), logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("notes, says", [
    ({"general.type": "adapter"}, "general.type is 'adapter'"),
    ({"tokenizer.ggml.add_sep_token": True}, "tokenizer.ggml.add_sep_token is True"),
], ids=str)
def test_a_file_that_is_not_the_whole_model_says_so(tmp_path, tiny_model, notes, says):
    write_gguf(tmp_path / "model.gguf", "Llama", tiny_model("Llama", 26), notes=notes)
    with pytest.raises(GearworksError, match=says) as error:
        Model.load(tmp_path / "model.gguf")
    assert error.value.hint


def keys_of_the_package(keys=gguf.constants.Keys):
    for name, value in vars(keys).items():
        if isinstance(value, type):
            yield from keys_of_the_package(value)
        elif isinstance(value, str) and not name.startswith("__"):
            yield value


@pytest.mark.parametrize("name", gguf_settings.READ)
def test_every_key_that_the_gguf_package_can_write_is_decided(name):
    """Read, left out for a reason, or refused by name where it says anything."""
    known = gguf_settings.READ[name].union(*gguf_settings.LEFT_OUT.values())
    known_tokenizer = gguf_settings.TOKENIZER_READ.union(
        *gguf_settings.TOKENIZER_LEFT_OUT.values())
    keys = {key.replace("{arch}", name) for key in keys_of_the_package()}
    assert len(keys) > 150 and f"{name}.rope.scaling.attn_factor" in keys
    refused = set()
    for key in keys:
        for value in (7, 0.37, "seven", True, False, [3, 4], np.array([3, 4])):
            try:
                gguf_settings.heeded(name, {key: value})
            except ModelError as error:
                assert key in error.why
                refused.add(key)
    of_model = {key for key in keys if key.startswith(f"{name}.")}
    assert {key.removeprefix(f"{name}.") for key in of_model - refused} == {
        key.removeprefix(f"{name}.") for key in of_model} & known
    of_tokenizer = {key for key in keys if key.startswith("tokenizer.") and "{" not in key}
    assert of_tokenizer - refused == of_tokenizer & known_tokenizer
    assert refused - of_model - of_tokenizer == {"general.type"}
    # What the tables name is spelt as the package spells it, but for what only others wrote
    assert known - {key.removeprefix(f"{name}.") for key in of_model} <= {"rope.scale_linear"}
    assert known_tokenizer - of_tokenizer == {"tokenizer.ggml.cls_token_id"}
    computed = gguf_settings.COMPUTED | gguf_settings.COMPUTED_BY_FAMILY.get(name, {})
    assert set(computed) <= {key.removeprefix(f"{name}.") for key in of_model}


class Watched(dict):
    """A mapping that knows which of its keys were asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = set()

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)


def test_keys_that_are_said_to_be_read_are_read(smollm2_gguf, monkeypatch):
    with GGUFFile.open(smollm2_gguf) as file:
        metadata = Watched(file.metadata)
    AnyTokenizer.from_gguf(metadata)
    gguf_eos_ids(metadata)
    unigram = Watched({"tokenizer.ggml.model": "t5",
                       "tokenizer.ggml.tokens": ["▁", "</s>", "<?>"],
                       "tokenizer.ggml.scores": [-1.0, 0.0, 0.0],
                       "tokenizer.ggml.token_type": [1, 3, 2]})
    AnyTokenizer.from_gguf(unigram)
    asked = {key for key in metadata.asked | unigram.asked if key.startswith("tokenizer.")}
    assert asked == gguf_settings.TOKENIZER_READ
    watched = []
    monkeypatch.setattr(gguf_architectures, "heeded", lambda *args: (
        watched.append(Watched(heeded(*args))) or watched[-1]))
    for name in gguf_settings.READ:
        ModelConfig.from_gguf(smallest(name), tied=True)
        assert watched[-1].asked == gguf_settings.READ[name]


LLAMA_3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def llama_3_factors(rope, head_dim):
    """What a converter writes for Llama 3.1: by how much each pair is slowed, from the formula
    in words. A pair that turns seldom in the old context is slowed whole, one that turns often
    not at all, and between them by a mix of both frequencies."""
    frequencies = rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / rope["factor"] + kept)).astype(np.float32)


@pytest.mark.parametrize("linear", [1.0, 2.0])
def test_the_scaled_rope_of_llama_3(tmp_path, tiny_model, rng, linear):
    """The factors of rope_freqs.weight, alone and with a linear scaling on top."""
    model = tiny_model("Llama", 25, head_dim=16, rope_parameters=LLAMA_3)
    factors = llama_3_factors(LLAMA_3, 16)
    assert factors[0] == 1 < factors[1] < factors[-1] == 8
    keys = {} if linear == 1 else {"rope.scaling.factor": linear}
    write_gguf(tmp_path / "model.gguf", "Llama", model,
               more_tensors={"rope_freqs.weight": factors / linear}, **keys)
    ids = rng.integers(0, 211, 200)
    ours = Model.load(tmp_path / "model.gguf")
    assert ours.config.rope_scaling.kind == "factors"
    np.testing.assert_allclose(logits(ours, ids), hf_logits(model, ids), rtol=0, atol=1e-4)
    write_gguf(tmp_path / "ones.gguf", "Llama", model,
               more_tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    other = logits(Model.load(tmp_path / "ones.gguf"), ids)
    assert np.abs(other - hf_logits(model, ids)).max() > 0.1


@pytest.mark.parametrize("engine", ["exact", "torch"])
@pytest.mark.parametrize("family, settings", [
    ("Mistral", {"sliding_window": 9}), ("Llama", {}), ("Qwen2", {"rope_parameters": YARN})],
    ids=str)
def test_other_engines_say_the_same(tmp_path, tiny_model, rng, engine, family, settings):
    """Windows, factors of RoPE, YaRN from the file; the compiled kernels on its codes."""
    pytest.importorskip({"exact": "numba"}.get(engine, engine))
    model = tiny_model(family, 33, hidden_size=64, num_attention_heads=4, **settings)
    more = ({"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
            if family == "Llama" else {})
    write_gguf(tmp_path / "model.gguf", family, model, more_tensors=more, types=[
        ("attn_q.weight", gguf.GGMLQuantizationType.Q8_0),
        ("attn_k.weight", gguf.GGMLQuantizationType.Q4_1)], **yarn_keys(settings))
    ids = rng.integers(0, 211, 40)
    expected = logits(Model.load(tmp_path / "model.gguf"), ids)
    other = backends.load_model(tmp_path / "model.gguf", engine)
    found = np.asarray(logits(other, ids))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "GptOss", "DeepseekV2",
                                    "DeepseekV3", "GPT2", "Gemma2", "Gemma3", "Olmo2"])
def test_the_kernels_take_every_family_in_the_bits_of_its_file(tmp_path, tiny_model, rng,
                                                               family, mode):
    """Experts too, one tensor of which becomes a matrix for each."""
    pytest.importorskip("numba")
    from gearworks.kernels.cpu.model import CompiledModel
    sizes = ({"n_embd": 64, "n_head": 4} if family == "GPT2" else
             {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 96,
              "num_attention_heads": 4,
              "num_key_value_heads": 4 if family.startswith("Deepseek") else 2})
    if family == "GptOss":
        sizes["rope_parameters"] = GPT_OSS_ROPE
    kinds = gguf.GGMLQuantizationType
    # gpt-oss's gate and up are of one type, all others' may differ
    gate = kinds.MXFP4 if family == "GptOss" else kinds.Q4_0
    write_gguf(tmp_path / "model.gguf", family, tiny_model(family, 27, **sizes), types=[
        ("_gate_exps.weight", gate), ("_up_exps.weight", kinds.Q8_0 if gate != kinds.MXFP4
                                      else gate),
        ("_down_exps.weight", kinds.Q5_1), ("attn_qkv.weight", kinds.Q8_0),
        ("ffn_gate.weight", kinds.Q8_0), ("ffn_up.weight", kinds.Q8_0),
        ("ffn_down.weight", kinds.Q4_1)],
        **(yarn_keys(sizes) if family == "GptOss" else {}))
    plain = Model.load(tmp_path / "model.gguf")
    model = CompiledModel.load(tmp_path / "model.gguf", mode, threads=2)
    config, layer = model.config, model.weights.layers[-1]
    experts = 1 if config.experts is None else config.experts.num_experts
    for field in ("gate_up_proj" if "gate_up_proj" in layer else "up_proj", "down_proj"):
        matrices = model.weights.matrices[layer[field]:layer[field] + experts]
        assert set(matrices["bits"]) <= {4, 8}
        assert len(set(matrices["words"])) == experts
    ids = rng.integers(0, 211, 50)
    expected, found = logits(plain, ids), np.asarray(logits(model, ids))
    gaps = np.abs(found - expected).max(axis=-1) / np.abs(expected).max()
    assert gaps.max() < 1e-4 if mode == "exact" else 0 < np.median(gaps) < 0.1


@pytest.mark.parametrize("factors, keys, says", [
    (np.ones(7), {}, "7 factors"), (np.zeros(8), {}, "factor 0 of the RoPE is 0.0"),
    ([1] * 7 + [np.nan], {}, "factor 7 of the RoPE is nan"),
    (np.ones(8), {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, "besides")],
    ids=str)
def test_factors_that_cannot_be_used_are_refused(tmp_path, tiny_model, factors, keys, says):
    write_gguf(tmp_path / "model.gguf", "Llama", tiny_model("Llama", 25, head_dim=16),
               more_tensors={"rope_freqs.weight": np.array(factors, np.float32)}, **keys)
    with pytest.raises(ModelError, match=says):
        Model.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("family, own, keys, says", [
    ("Gemma3", {}, {"final_logit_softcapping": 30.0}, "gemma3.final_logit_softcapping is 30.0"),
    ("DeepseekV2", {"topk_method": "greedy"}, {"expert_weights_norm": True}, "is true"),
    ("DeepseekV2", {"topk_method": "greedy"}, {"expert_gating_func": 3}, "gating_func is 3"),
    ("Qwen3", {}, {"attention.sliding_window": 9}, "qwen3.attention.sliding_window is 9"),
    ("Qwen3Moe", {}, {"attention.sliding_window": 9}, "sliding_window is 9"),
    ("GPT2", {}, {"attention.head_count_kv": 2}, "head_count_kv is 2"),
    ("GPT2", {}, {"rope.freq_base": 1e4}, "gpt2.rope.freq_base is 10000"),
    ("Qwen2", {}, {"expert_count": 8}, "qwen2.expert_count is 8"),
    ("Llama", {}, {"expert_used_count": 2}, "llama.expert_count is missing"),
    ("DeepseekV3", {}, {"attention.temperature_scale": 0.1}, "temperature_scale is 0.1"),
], ids=str)
def test_what_a_family_does_not_compute_is_refused(tmp_path, tiny_model, family, own, keys,
                                                   says):
    write_gguf(tmp_path / "model.gguf", family, tiny_model(family, 24, **own), **keys)
    with pytest.raises(ModelError, match=says):
        Model.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("family, lost", [
    ("Mixtral", "blk.1.ffn_up_exps.weight"), ("DeepseekV3", "blk.2.attn_k_b.weight"),
    ("DeepseekV3", "blk.1.exp_probs_b.bias"), ("GPT2", "blk.0.attn_qkv.weight"),
    ("Qwen3Moe", "blk.2.ffn_gate_inp.weight")])
def test_a_tensor_that_is_missing_is_named(tmp_path, tiny_model, monkeypatch, family, lost):
    whole = as_converted
    monkeypatch.setitem(globals(), "as_converted", lambda *args: {
        name: array for name, array in whole(*args).items() if name != lost})
    write_gguf(tmp_path / "model.gguf", family, tiny_model(family, 28))
    with pytest.raises(ModelError, match="missing") as error:
        Model.load(tmp_path / "model.gguf")
    stem = lost.replace("_exps.weight", ".0.weight").replace("k_b", "kv_b")
    assert stem in error.value.why


SMALLEST = {"context_length": 64, "embedding_length": 32, "block_count": 2,
            "feed_forward_length": 48, "attention.head_count": 4,
            "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
            "attention.sliding_window": 64}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8}
LATENT = {"attention.kv_lora_rank": 12, "attention.key_length": 10,
          "attention.value_length": 6, "rope.dimension_count": 4}
OWN = {"qwen3moe": EXPERTS, "gpt-oss": EXPERTS, "deepseek2": EXPERTS | LATENT}


def smallest(name):
    """The fewest keys that a model of an architecture has."""
    keys = SMALLEST | OWN.get(name, {})
    return {f"{name}.{key}": value for key, value in keys.items()
            if key in gguf_settings.READ[name]} | {
        "general.architecture": name, "tokenizer.ggml.tokens": ["a"]}


@pytest.mark.parametrize("name", gguf_settings.READ)
def test_no_value_of_a_key_does_more_than_be_read_or_refused(name):
    values = (None, -1, 0, 3, 2**40, 2**63, 0.5, -0.5, np.nan, np.inf, "", "x", True, [],
              np.array([1, 2]), np.zeros(0))
    read = 0
    for key in gguf_settings.READ[name]:
        for value in values:
            metadata = smallest(name) | {f"{name}.{key}": value}
            try:
                config = ModelConfig.from_gguf(metadata, tied=True)
            except ModelError as error:
                assert error.why
            else:
                read += config.hidden_size > 0
    assert read > len(gguf_settings.READ[name])


def test_a_number_of_layers_that_cannot_be_costs_nothing(tmp_path, tiny_model):
    for family in ("GPT2", "Llama", "Mixtral", "DeepseekV3"):
        for layers in (99_999, 2**31):
            write_gguf(tmp_path / "model.gguf", family, tiny_model(family, 28),
                       block_count=layers)
            with pytest.raises(ModelError, match="announced|so many"):
                Model.load(tmp_path / "model.gguf")


def test_experts_that_are_not_as_many_as_announced(tmp_path, tiny_model):
    write_gguf(tmp_path / "model.gguf", "Mixtral", tiny_model("Mixtral", 28),
               expert_count=4)
    with pytest.raises(GearworksError, match="the model has 4 experts"):
        Model.load(tmp_path / "model.gguf")


def test_another_architecture_is_refused_by_name(tmp_path, tiny_model):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "starcoder2")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'starcoder2' is not supported") as error:
        Model.load(tmp_path / "model.gguf")
    assert all(name in str(error.value) for name in gguf_settings.READ)


def test_the_readme_names_the_types_that_are_read():
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"GGUF ({', '.join(kind.name for kind in BLOCK_FORMATS)})" in text
