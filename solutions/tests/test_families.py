"""Every family against Hugging Face, on tiny random models of odd shapes,
and against itself."""

import itertools
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gearworks import backends
from gearworks.accounting import latent_cache_bytes
from gearworks.comparison.compare import load_hf
from gearworks.config import SUPPORTED_ARCHITECTURES, ExpertsConfig, ModelConfig
from gearworks.errors import FormatError, ModelError
from gearworks.families.deepseek import choose
from gearworks.kv_cache import KVCache, RaggedBatch
from gearworks.model import Model
from gearworks.quantization.mxfp4 import quantize_mxfp4

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.3, 0.9, 2.0], "long_factor": [1.5, 4.0, 9.0, 30.0]}
# More experts than fit into one group, one group only, all groups; every kind of RoPE; one or
# many key/value heads.
CASES = [
    ("Llama", {"rope_parameters": LLAMA3}),
    ("Llama",
     {"rope_parameters": LLAMA3 | {"factor": 32.0, "high_freq_factor": 2.5}, "head_dim": 22,
      "num_key_value_heads": 3}),
    ("Llama",
     {"rope_parameters": {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 4.0},
      "head_dim": 10}),
    ("Llama",
     {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
      "max_position_embeddings": 64, "head_dim": 12}),
    ("Llama", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    ("Llama",
     {"rope_parameters": YARN | {"beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 0.7,
                                 "truncate": False}, "hidden_size": 40,
      "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 14}),
    ("Llama", {"attention_bias": True, "num_key_value_heads": 3, "head_dim": 10}),
    ("Qwen2", {}),
    ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    ("Qwen2",
     {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1,
      "intermediate_size": 23}),
    ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-2}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}),
    ("Qwen2", {"rope_parameters": YARN, "vocab_size": 37}),
    ("Qwen3", {"head_dim": 10}),
    ("Qwen3", {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 1}),
    ("Qwen3", {"head_dim": 6, "tie_word_embeddings": True}),
    ("Qwen3",
     {"head_dim": 14, "num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 36,
      "rms_norm_eps": 1e-2}),
    ("Qwen3",
     {"head_dim": 8, "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}),
    ("Qwen3",
     {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
      "vocab_size": 409}),
    ("Qwen3", {"head_dim": 10, "attention_bias": True, "num_key_value_heads": 6}),
    ("Mistral", {"sliding_window": 9}),
    ("Mistral", {"sliding_window": 1, "head_dim": 10}),
    ("Mistral", {"sliding_window": 64, "num_key_value_heads": 1}),
    ("Mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    ("Mistral",
     {"sliding_window": 33, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 6}),
    ("Mistral", {"sliding_window": 70, "intermediate_size": 23, "rope_parameters": LLAMA3}),
    ("Phi3", {}),
    ("Phi3", {"rope_parameters": None, "tie_word_embeddings": True, "vocab_size": 37}),
    ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 133,
              "max_position_embeddings": 133, "num_key_value_heads": 6}),
    ("Phi3", {"rope_parameters": LONGROPE | {"attention_factor": 1.7,
                                             "partial_rotary_factor": 0.67},
              "original_max_position_embeddings": 20, "hidden_size": 60,
              "num_attention_heads": 5, "num_key_value_heads": 5}),
    ("Phi3", {"rope_parameters": LONGROPE | {"factor": 3.0, "partial_rotary_factor": 0.5},
              "original_max_position_embeddings": 10, "hidden_size": 80, "sliding_window": 9,
              "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 23}),
    ("Phi3", {"sliding_window": 33, "rms_norm_eps": 1e-2, "num_key_value_heads": 1}),
    ("GptOss", {}),
    ("GptOss", {"swiglu_limit": 0.4, "swiglu_alpha": 3.0, "num_key_value_heads": 6}),
    ("GptOss", {"num_local_experts": 7, "num_experts_per_tok": 1, "tie_word_embeddings": True,
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
    ("GptOss", {"attention_bias": False, "num_experts_per_tok": 5, "head_dim": 16}),
    ("GptOss", {"layer_types": ["full_attention"] * 3, "intermediate_size": 23,
                "vocab_size": 37}),
    ("GptOss", {"rope_parameters": None, "hidden_size": 40, "num_attention_heads": 5,
                "num_key_value_heads": 1, "max_position_embeddings": 8192}),
    ("GptOss", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
                "sliding_window": 64, "rms_norm_eps": 1e-2, "head_dim": 6}),
    ("Olmo2", {}),
    ("Olmo2", {"num_key_value_heads": 6, "tie_word_embeddings": True, "vocab_size": 37}),
    ("Olmo2", {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 50}),
    ("Olmo2", {"head_dim": 10, "intermediate_size": 23, "rms_norm_eps": 1e-2}),
    ("Olmo2", {"head_dim": 14, "num_attention_heads": 4, "rope_parameters": YARN}),
    ("Olmo2", {"rope_parameters": LLAMA3, "num_hidden_layers": 1, "num_key_value_heads": 3}),
    ("SmolLM3", {}),
    ("SmolLM3", {"no_rope_layers": [0, 1, 1], "head_dim": 10, "vocab_size": 37}),
    ("SmolLM3", {"no_rope_layers": [0, 0, 0, 0], "tie_word_embeddings": False}),
    ("SmolLM3", {"no_rope_layer_interval": 4, "num_hidden_layers": 5, "head_dim": 14,
                 "num_key_value_heads": 1, "num_attention_heads": 5, "hidden_size": 36}),
    ("SmolLM3", {"use_sliding_window": True, "sliding_window": 9, "rms_norm_eps": 1e-2}),
    ("SmolLM3", {"use_sliding_window": True, "sliding_window": 13, "num_key_value_heads": 6,
                 "layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
    ("SmolLM3", {"rope_parameters": YARN, "head_dim": 22, "intermediate_size": 23}),
    ("SmolLM3", {"attention_bias": True, "head_dim": 10}),
    ("GPT2", {}),
    ("GPT2", {"n_inner": 50}),
    ("GPT2", {"n_head": 16}),
    ("GPT2", {"n_embd": 45, "n_head": 5}),
    ("GPT2", {"layer_norm_epsilon": 1e-2, "n_layer": 1}),
    ("GPT2", {"tie_word_embeddings": False, "n_positions": 140}),
    ("Gemma3", {}),
    ("Gemma3", {"num_hidden_layers": 7}),
    ("Gemma3",
     {"layer_types": ["full_attention", "sliding_attention", "full_attention"],
      "sliding_window": 5}),
    ("Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 7, "num_key_value_heads": 1}),
    ("Gemma3",
     {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0,
                                             "rope_theta": 1e5},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}},
      "num_hidden_layers": 6}),
    ("Gemma3",
     {"num_hidden_layers": 6,
      "rope_parameters": {"full_attention": YARN,
                          "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    ("Gemma3",
     {"num_hidden_layers": 6, "max_position_embeddings": 64,
      "rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0,
                                             "rope_theta": 1e4},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    ("Gemma3",
     {"tie_word_embeddings": False, "hidden_size": 36, "num_key_value_heads": 6,
      "rms_norm_eps": 1e-2}), ("Mixtral", {}),
    ("Gemma2", {}), ("Gemma2", {"attn_logit_softcapping": None, "num_hidden_layers": 5}),
    ("Gemma2", {"final_logit_softcapping": None, "head_dim": 16, "num_key_value_heads": 1}),
    ("Gemma2", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"],
                "query_pre_attn_scalar": 7, "attn_logit_softcapping": 0.5}),
    ("Gemma2", {"rope_parameters": LLAMA3, "vocab_size": 37, "intermediate_size": 23}),
    ("Gemma2", {"tie_word_embeddings": False, "num_key_value_heads": 6, "rms_norm_eps": 1e-2}),
    ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 1}),
    ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "head_dim": 10}),
    ("Mixtral", {"sliding_window": 10, "tie_word_embeddings": True}),
    ("Mixtral", {"num_key_value_heads": 6, "intermediate_size": 23}),
    ("Mixtral",
     {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 40, "vocab_size": 37}),
    ("Qwen3Moe", {}),
    ("Qwen3Moe", {"norm_topk_prob": True}),
    ("Qwen3Moe", {"mlp_only_layers": [1]}),
    ("Qwen3Moe", {"decoder_sparse_step": 2, "head_dim": 6}),
    ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 1, "num_key_value_heads": 1}),
    ("Qwen3Moe", {"tie_word_embeddings": True, "moe_intermediate_size": 90}),
    ("DeepseekV2", {"topk_method": "greedy"}),
    ("DeepseekV2", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}),
    ("DeepseekV2", {"topk_method": "greedy", "q_lora_rank": None, "n_shared_experts": 1}),
    ("DeepseekV2",
     {"topk_method": "group_limited_greedy", "topk_group": 1, "n_group": 3,
      "first_k_dense_replace": 0}),
    ("DeepseekV2",
     {"topk_method": "greedy", "first_k_dense_replace": 3, "v_head_dim": 18,
      "kv_lora_rank": 6}),
    ("DeepseekV2",
     {"topk_method": "greedy",
      "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}}), ("DeepseekV3", {}),
    ("DeepseekV3", {"rope_interleave": False, "norm_topk_prob": False}),
    ("DeepseekV3", {"n_group": 1, "topk_group": 1, "q_lora_rank": None}),
    ("DeepseekV3",
     {"n_group": 3, "topk_group": 2, "num_experts_per_tok": 5, "first_k_dense_replace": 0}),
    ("DeepseekV3",
     {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
      "tie_word_embeddings": True}),
    ("DeepseekV3",
     {"qk_nope_head_dim": 4, "qk_rope_head_dim": 12, "v_head_dim": 5,
      "routed_scaling_factor": 1.0})]
FAMILIES = list(dict.fromkeys(family for family, _ in CASES))


def name(case) -> str:
    return (str(case) if isinstance(case, str)
            else "-".join(f"{key}={value}" for key, value in case.items())[:60] or "plain")


def whole(model: Model, ids: np.ndarray) -> np.ndarray:
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


@pytest.mark.parametrize("family, settings", CASES, ids=name)
def test_logits_equal_hf(tiny_model, rng, family, settings):
    hf_model, folder = tiny_model(family, len(str(settings)), **settings)
    model = Model.load(folder)
    assert model.weights.nbytes() == 4 * sum(tensor.numel() for tensor in {
        tensor.data_ptr(): tensor for key, tensor in hf_model.state_dict().items()}.values())
    for length in (1, 7, 133):
        ids = rng.integers(0, model.config.vocab_size, length)
        with torch.no_grad():
            expected = hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()
        assert np.abs(expected).max() > 0.5              # else the tolerance would mean nothing
        np.testing.assert_allclose(whole(model, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "family, settings",
    [(family, {}) for family in FAMILIES]
    + [("Mistral", {"sliding_window": 9}), ("Mistral", {"sliding_window": 64}),
       ("Mixtral", {"sliding_window": 1}),
       ("Qwen2", {"use_sliding_window": True, "sliding_window": 66, "max_window_layers": 1}),
       ("Llama", {"rope_parameters": YARN}),
       ("DeepseekV3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}})],
    ids=name)
def test_cached_chunked_and_ragged_equal_whole(tiny_model, rng, family, settings):
    """Sequences in different phases share one call, and however they are cut into steps,
    their logits are the same."""
    _, folder = tiny_model(family, 3, **settings)
    model = Model.load(folder)
    pasts, counts = [0, 33, 5, 0, 12], [70, 1, 8, 1, 0]
    sequences = [rng.integers(0, model.config.vocab_size, past + count)
                 for past, count in zip(pasts, counts)]
    caches = [model.new_cache(len(ids) + 3) for ids in sequences]
    for cache, ids, past in zip(caches, sequences, pasts):
        for start in range(0, past, 11):                                        # in chunks
            part = ids[start:min(start + 11, past)]
            model.forward(part, np.arange(start, start + len(part)), cache, logits_at=[-1])
    step = np.concatenate([ids[past:] for ids, past in zip(sequences, pasts)])
    positions = np.concatenate([np.arange(past, len(ids))
                                for ids, past in zip(sequences, pasts)])
    logits = model.forward(step, positions, RaggedBatch(caches, counts))
    expected = np.concatenate([whole(model, ids)[past:] for ids, past in zip(sequences, pasts)])
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(
        model.forward(sequences[0], np.arange(70), model.new_cache(70), logits_at=[69, 4]),
        whole(model, sequences[0])[[69, 4]], rtol=0, atol=2e-5)


@pytest.mark.reference("float32 on the way")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_array_on_the_path_is_float64(tiny_model, rng, family):
    """Whatever a function of the engine holds in a variable, takes or returns is float32."""
    _, folder = tiny_model(family, 5)
    model = Model.load(folder)
    package = str(Path(sys.modules["gearworks"].__file__).parent)
    found, looked_at = set(), set()

    def watch(frame, event, value):
        if event == "return" and frame.f_code.co_filename.startswith(package):
            looked_at.add(frame.f_code.co_name)
            for variable, held in [*frame.f_locals.items(), ("the result", value)]:
                is_array = isinstance(held, (np.ndarray, np.generic))
                if is_array and held.dtype.kind == "f" and held.dtype != np.float32:
                    found.add(f"{frame.f_code.co_qualname}: {variable} is {held.dtype}")
    cache = model.new_cache(80)
    sys.setprofile(watch)
    try:
        model.forward(rng.integers(0, 37, 79), np.arange(79), cache)
        logits = model.forward(np.array([3]), np.array([79]), cache)
    finally:
        sys.setprofile(None)
    assert found == set() and logits.dtype == np.float32
    assert {"attend", "linear", "forward", "decoder_layer"} <= looked_at
    assert looked_at & {"attention", "attention_over_views"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_may_have_no_token(tiny_model, rng, family):
    _, folder = tiny_model(family, 3)
    model, none = Model.load(folder), np.zeros(0, np.int64)
    caches = [model.new_cache(4), model.new_cache(4)]
    assert model.forward(none, none, caches[0]).shape == (0, 211)
    assert model.forward(none, none, RaggedBatch(caches, [0, 0])).shape == (0, 211)
    ids = rng.integers(0, 211, 4)
    np.testing.assert_array_equal(model.forward(ids, np.arange(4), caches[0]),
                                  whole(model, ids))


OLD_NAMES = [
    ("Llama",
     {"rope_parameters": None, "rope_theta": 5000.0,
      "rope_scaling": {"type": "linear", "factor": 3.0}}),
    ("Llama",
     {"rope_parameters": None, "rope_theta": 5000.0,
      "rope_scaling": {name: value for name, value in YARN.items()
                       if name not in ("rope_theta", "original_max_position_embeddings")},
      "original_max_position_embeddings": 32}),
    ("Qwen2",
     {"rope_parameters": None, "rope_theta": 1e6, "rope_scaling": None, "layer_types": None,
      "use_sliding_window": True, "sliding_window": 11, "max_window_layers": 2}),
    ("Gemma3",
     {"rope_parameters": None, "rope_theta": 3e5, "rope_local_base_freq": 700.0,
      "layer_types": None, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
      "sliding_window_pattern": 2}),
    ("Gemma3",
     {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 300.0}},
      "rope_theta": 3e4}),
    ("DeepseekV3",
     {"rope_parameters": None, "rope_theta": 10000,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 4, "mscale": 1.0,
                       "mscale_all_dim": 0.7, "type": "yarn",
                       "original_max_position_embeddings": 64}}),
    ("DeepseekV3",
     {"routed_scaling_factor": ..., "norm_topk_prob": ..., "rope_interleave": ...,
      "rms_norm_eps": ...}),
    ("GPT2",
     {"layer_norm_epsilon": ..., "tie_word_embeddings": ..., "n_inner": ..., "n_ctx": 256})]


@pytest.mark.parametrize("family, changes", OLD_NAMES, ids=name)
def test_older_files_and_missing_fields_are_read_as_hf_reads_them(tiny_model, rng, family,
                                                                  changes):
    """Both engines load the same changed folder. `...` takes a field away."""
    _, folder = tiny_model(family, 40)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
    config = {field: value for field, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ids = rng.integers(0, 211, 90)
    with torch.no_grad():
        expected = load_hf(folder)(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(whole(Model.load(folder), ids), expected, rtol=0, atol=1e-4)


def test_gpt_oss_as_it_was_published(tiny_model, rng):
    """Experts in MXFP4, whose matrices lie the other way round than in a plain file."""
    hf_model, folder = tiny_model("GptOss", 42, hidden_size=64, intermediate_size=96)
    state = {key: tensor.clone() for key, tensor in hf_model.state_dict().items()}
    for key in [key for key in state if key.endswith(("gate_up_proj", "experts.down_proj"))]:
        packed = [quantize_mxfp4(expert.T.contiguous().numpy()) for expert in state.pop(key)]
        for part, arrays in zip(("blocks", "scales"), zip(*packed)):
            state[f"{key}_{part}"] = torch.from_numpy(np.stack(arrays))
        hf_model.get_parameter(key).data = convert_moe_packed_tensors(
            state[f"{key}_blocks"], state[f"{key}_scales"], dtype=torch.float32)
    save_file(state, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        "experts_per_token": 2, "initial_context_length": 64}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ids = rng.integers(0, 211, 50)
    with torch.no_grad():
        expected = hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(whole(Model.load(folder), ids), expected, rtol=0, atol=1e-4)
    for part, wrong, says in (("scales", (5, 192, 3), "expected"),
                              ("blocks", (5, 192, 2, 15), "not of 16 bytes")):
        key = f"model.layers.1.mlp.experts.gate_up_proj_{part}"
        save_file(state | {key: torch.zeros(wrong, dtype=torch.uint8)},
                  folder / "model.safetensors")
        with pytest.raises(FormatError, match=says):
            Model.load(folder)
    pytest.importorskip("numba")
    save_file(state, folder / "model.safetensors")
    compiled = backends.load_model(folder, "auto")      # which runs experts in their own bits
    assert set(compiled.weights.matrices["bits"]) == {8, 32}
    np.testing.assert_allclose(compiled.forward(ids, np.arange(50), compiled.new_cache(50)),
                               expected, rtol=0, atol=1e-4)


def test_gpt2_as_it_was_published(tiny_model, rng, tmp_path):
    """Names without a prefix, and each layer's causal mask among the weights."""
    hf_model, folder = tiny_model("GPT2", 41)
    state = {key.removeprefix("transformer."): tensor.clone()
             for key, tensor in hf_model.state_dict().items() if key != "lm_head.weight"}
    for layer in range(3):
        state[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, 256, 256))
    save_file(state, folder / "model.safetensors")
    ids = rng.integers(0, 211, 50)
    with torch.no_grad():
        expected = hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = Model.load(folder)
    np.testing.assert_allclose(whole(model, ids), expected, rtol=0, atol=1e-4)
    with pytest.raises(ModelError, match="position 256, and positions up to 255 were learned"):
        model.forward(np.array([1]), np.array([256]), model.new_cache(1))
    pytest.importorskip("numba")
    compiled = backends.load_model(folder, "exact")
    cache = compiled.new_cache(260)
    with pytest.raises(ModelError, match="position 256, and positions up to 255 were learned"):
        compiled.forward(np.array([1]), np.array([256]), cache)
    assert len(cache) == 0


def test_a_router_that_likes_no_expert_gives_no_nan():
    """Sigmoids so small that they are zero: the weights are zeros, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experts = ExpertsConfig(4, 2, 5, True, (True,), "sigmoid")
        weights = SimpleNamespace(router=np.full((4, 3), -1000, np.float32),
                                  router_bias=np.zeros(4, np.float32))
        chosen, gates = choose(np.ones((2, 3), np.float32), weights,
                               SimpleNamespace(experts=experts))
    assert gates.dtype == np.float32 and (gates == 0).all() and chosen.shape == (2, 2)


def test_the_latent_is_all_that_the_cache_holds(tiny_model):
    """DeepSeek's published sizes: 576 numbers for a token and layer,
    whatever the number of heads."""
    _, folder = tiny_model("DeepseekV3", 0, kv_lora_rank=512, qk_rope_head_dim=64,
                           num_hidden_layers=2)
    config = Model.load(folder).config
    cache = KVCache(config, 10)
    assert cache.keys.shape == (2, 1, 10, 576) and cache.values.base is cache.keys
    assert cache.keys.nbytes == latent_cache_bytes(
        2, config.latent.kv_lora_rank, config.latent.qk_rope_head_dim, 10, "float32")


@pytest.mark.reference("speed")
def test_a_window_bounds_what_a_step_costs(tiny_model, rng, monkeypatch):
    """Keys that no query can see are not multiplied with."""
    import gearworks.kv_cache
    _, folder = tiny_model("Mistral", 0, sliding_window=20)
    model, seen, real = Model.load(folder), [], gearworks.kv_cache.attention

    def count(q, k, v, mask=None):
        seen.append((len(q), len(k)))
        return real(q, k, v, mask)
    monkeypatch.setattr(gearworks.kv_cache, "attention", count)
    whole(model, rng.integers(0, 211, 200))
    assert max(keys - queries for queries, keys in seen) == 19


def test_every_architecture_is_named_when_another_is_refused():
    with pytest.raises(ModelError) as error:
        ModelConfig.from_hf({"architectures": ["FalconForCausalLM"]})
    assert "FalconForCausalLM" in str(error.value)
    assert all(architecture in str(error.value) for architecture in SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize(
    "family, change, says",
    [("Llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}},
      "longrope"),
     ("Llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": -1}},
      "factor"),
     ("Llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 2.0}},
      "rope_theta"),
     ("Llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}},
      "low_freq_factor"),
     ("Llama",
      {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0,
                           "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
     ("Qwen3",
      {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
      "kind of layer"), ("Llama", {"attention_bias": "yes"}, "attention_bias"),
     ("Olmo2", {"attention_bias": True}, "attention_bias"),
     ("DeepseekV3", {"attention_bias": True}, "attention_bias"),
     ("Llama", {"mlp_bias": True}, "mlp_bias"),
     ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
     ("Llama", {"is_causal": False}, "is_causal"),
     ("Llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
     ("Mistral", {"layer_types": ["full_attention"] * 3, "sliding_window": 4}, "layer_types"),
     ("Qwen2", {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": False},
      "sliding_window is None"), ("Qwen2", {"use_sliding_window": "yes"}, "use_sliding_window"),
     ("Mistral", {"sliding_window": 0}, "sliding_window"),
     ("Qwen2",
      {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"]},
      "layer_types"), ("Mixtral", {"num_experts_per_tok": 6}, "cannot choose 6 of 5 experts"),
     ("Mixtral", {"num_hidden_layers": 10**12}, "num_hidden_layers"),
     ("Mixtral", {"num_local_experts": 10**12}, "no model has so many"),
     ("Mixtral", {"num_local_experts": 100_000}, "experts are announced"),
     ("DeepseekV2", {"topk_method": "mystery"}, "topk_method"),
     ("DeepseekV3", {"n_group": 5}, "cannot form 5 groups"),
     ("DeepseekV3", {"scoring_func": "softmax"}, "scoring_func"),
     ("DeepseekV3", {"num_key_value_heads": 2}, "num_key_value_heads"),
     ("Gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
     ("Gemma3", {"sliding_window": None}, "sliding_window is None"),
     ("Gemma3", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
      "each kind of layer"),
     ("Gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
     ("Gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
     ("GPT2", {"activation_function": "relu"}, "activation_function")])
def test_what_would_be_computed_wrongly_is_refused(tiny_model, family, change, says):
    _, folder = tiny_model(family, 0)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | change
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=says):
        Model.load(folder)


def test_long_factors_are_chosen_for_each_sequence(tiny_model, rng):
    """A sequence in steps is what Hugging Face makes of the same steps, across the border of
    the trained context; and what else is in the batch changes nothing."""
    hf_model, folder = tiny_model("Phi3", 9, rope_parameters=LONGROPE,
                                  original_max_position_embeddings=40)
    model = Model.load(folder)
    ids, short = rng.integers(0, 211, 90), rng.integers(0, 211, 18)
    *caches, alone = (model.new_cache(99) for _ in range(3))
    hf_cache = None
    for number, (start, end) in enumerate(itertools.pairwise([0, 20, 39, 40, 41, 42, 90])):
        with torch.no_grad():
            said = hf_model(torch.from_numpy(ids[start:end])[None], cache=hf_cache,
                            use_cache=True)
        hf_cache = said.cache
        places = np.arange(3 * number, 3 * number + 3)
        logits = model.forward(np.concatenate([ids[start:end], short[places]]),
                               np.concatenate([np.arange(start, end), places]),
                               RaggedBatch(caches, [end - start, 3]))
        np.testing.assert_allclose(logits[:-3], said.logits[0].numpy(), rtol=0, atol=1e-4)
        np.testing.assert_allclose(logits[-3:], model.forward(short[places], places, alone),
                                   rtol=0, atol=2e-5)
