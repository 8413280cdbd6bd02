"""What a config.json means: as transformers reads it, whatever it leaves out,
or an error that says why not.

Takes about 5 s.
"""

import json
from math import prod

import pytest
import transformers

from gearworks.config import SUPPORTED_ARCHITECTURES, ModelConfig
from gearworks.config.settings import READ
from gearworks.errors import ModelError
from gearworks.weights import expected_shapes, map_names

# Fields without which a file is damaged, whatever transformers makes of it.
REQUIRED = {"architectures", "vocab_size", "hidden_size", "intermediate_size",
            "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
            "n_positions", "n_embd", "n_layer", "n_head"}
SIZES = {"hidden_size": 768, "num_attention_heads": 32, "num_hidden_layers": 40}
OWN = {
    "GPT2LMHeadModel": {"n_embd": 48, "n_layer": 3, "n_head": 6},
    "DeepseekV2ForCausalLM": SIZES | {"num_experts_per_tok": 2},
    "DeepseekV3ForCausalLM": SIZES | {"num_key_value_heads": 32},
}


def hf_config(architecture: str, fields: dict):
    family = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    kind = getattr(transformers,
                   "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")
    return kind(**{name: value for name, value in fields.items() if name != "architectures"})


def explicit(architecture: str, fields: dict) -> dict:
    """The same file with every field that transformers takes a default for."""
    whole = hf_config(architecture, fields).to_dict() | {"architectures": [architecture]}
    # not of the network that runs
    return whole | {"num_nextn_predict_layers": fields.get("num_nextn_predict_layers")}


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_a_missing_field_means_what_it_means_to_transformers(architecture):
    fields = explicit(architecture, OWN.get(architecture, SIZES))
    if architecture.startswith("Qwen"):
        fields = (fields
                  | {"use_sliding_window": True, "sliding_window": 77, "layer_types": None})
    required = REQUIRED | ({"num_experts_per_tok"} if architecture == "DeepseekV2ForCausalLM"
                           else set())
    looked_at = 0
    for name in fields:
        without = {key: value for key, value in fields.items() if key != name}
        if (architecture, name) == ("DeepseekV3ForCausalLM", "num_key_value_heads"):
            # transformers says 128, and fails
            assert ModelConfig.from_hf(without).num_key_value_heads == 32
        elif name in required:
            with pytest.raises(ModelError):
                ModelConfig.from_hf(without)
        else:
            assert ModelConfig.from_hf(without) == ModelConfig.from_hf(explicit(architecture,
                                                                                without)), name
            looked_at += 1
    assert looked_at > 20


LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "attention_bias": False,
         "torch_dtype": "bfloat16"}
YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096,
        "type": "yarn"}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 129280}
# As published, with the field names of their day; the numbers of weights are those of the
# models' own pages and papers.
PUBLISHED = {
    "Llama-2-7B": (6_738_415_616,
                   LLAMA
                   | {"hidden_size": 4096, "intermediate_size": 11008,
                      "max_position_embeddings": 4096, "num_attention_heads": 32,
                      "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
                      "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False,
                      "vocab_size": 32000}),
    "Llama-3.2-1B": (
        1_235_814_400,
        LLAMA
        | {"head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
           "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
           "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
           "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                            "rope_type": "llama3", "original_max_position_embeddings": 8192},
           "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256}),
    "Qwen2.5-0.5B": (
        494_032_768,
        LLAMA
        | {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
           "max_window_layers": 24, "max_position_embeddings": 32768, "num_attention_heads": 14,
           "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
           "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
           "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936}),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        LLAMA
        | {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "head_dim": 128,
           "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
           "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
           "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
           "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
           "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0,
           "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
           "vocab_size": 151936}),
    "Mistral-7B-v0.1": (7_241_732_096,
                        LLAMA
                        | {"architectures": ["MistralForCausalLM"], "hidden_size": 4096,
                           "intermediate_size": 14336, "max_position_embeddings": 32768,
                           "num_attention_heads": 32, "num_hidden_layers": 32,
                           "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
                           "rope_theta": 10000.0, "sliding_window": 4096,
                           "tie_word_embeddings": False, "vocab_size": 32000}),
    "Mixtral-8x7B": (46_702_792_704,
                     LLAMA
                     | {"architectures": ["MixtralForCausalLM"], "hidden_size": 4096,
                        "intermediate_size": 14336, "max_position_embeddings": 32768,
                        "num_attention_heads": 32, "num_experts_per_tok": 2,
                        "num_hidden_layers": 32, "num_key_value_heads": 8,
                        "num_local_experts": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
                        "sliding_window": None, "tie_word_embeddings": False,
                        "vocab_size": 32000}),
    "SmolLM3-3B": (3_075_098_624,
                   LLAMA
                   | {"architectures": ["SmolLM3ForCausalLM"], "hidden_size": 2048,
                      "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
                      "max_position_embeddings": 65536, "max_window_layers": 28,
                      "mlp_bias": False, "no_rope_layer_interval": 4,
                      "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
                      "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
                      "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
                      "use_sliding_window": False, "vocab_size": 128256}),
    "Phi-3-mini-4k": (3_821_079_552,
                      LLAMA
                      | {"architectures": ["Phi3ForCausalLM"], "embd_pdrop": 0.0,
                         "hidden_size": 3072, "intermediate_size": 8192,
                         "max_position_embeddings": 4096, "num_attention_heads": 32,
                         "num_hidden_layers": 32, "num_key_value_heads": 32,
                         "original_max_position_embeddings": 4096, "resid_pdrop": 0.0,
                         "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
                         "sliding_window": 2047, "tie_word_embeddings": False,
                         "vocab_size": 32064}),
    "Phi-4": (14_659_507_200,
              LLAMA
              | {"architectures": ["Phi3ForCausalLM"], "hidden_size": 5120,
                 "intermediate_size": 17920, "max_position_embeddings": 16384,
                 "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
                 "original_max_position_embeddings": 16384, "rms_norm_eps": 1e-5,
                 "rope_scaling": None, "rope_theta": 250000, "sliding_window": None,
                 "tie_word_embeddings": False, "vocab_size": 100352}),
    "OLMo-2-7B": (7_298_617_344,
                  LLAMA
                  | {"architectures": ["Olmo2ForCausalLM"], "hidden_size": 4096,
                     "intermediate_size": 11008, "max_position_embeddings": 4096,
                     "num_attention_heads": 32, "num_hidden_layers": 32,
                     "num_key_value_heads": 32, "rms_norm_eps": 1e-6, "rope_scaling": None,
                     "rope_theta": 500000, "tie_word_embeddings": False,
                     "vocab_size": 100352}),
    "GPT-2": (124_439_808,
              {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
               "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 768, "n_head": 12,
               "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}),
    "Gemma-3-1B": (999_885_952,
                   {"architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
                    "attn_logit_softcapping": None, "head_dim": 256,
                    "cache_implementation": "hybrid", "final_logit_softcapping": None,
                    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
                    "intermediate_size": 6912, "max_position_embeddings": 32768,
                    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
                    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
                    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
                    "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144}),
    "DeepSeek-V2-Lite": (
        15_706_484_224,
        DEEPSEEK_V3
        | {"architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1,
           "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
           "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
           "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
           "num_key_value_heads": 16, "q_lora_rank": None, "routed_scaling_factor": 1.0,
           "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
           "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy",
           "vocab_size": 102400}),
    "DeepSeek-V3": (671_026_419_200, DEEPSEEK_V3)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read_as_transformers_reads_them(name):
    weights, fields = PUBLISHED[name]
    config = ModelConfig.from_hf(fields)
    assert config == ModelConfig.from_hf(explicit(config.architecture, fields))
    assert sum(map(prod, expected_shapes(config).values())) == weights


def test_windows_of_published_models():
    gemma = ModelConfig.from_hf(PUBLISHED["Gemma-3-1B"][1])
    assert gemma.windows == ((512,) * 5 + (None,)) * 4 + (512, 512)
    assert ModelConfig.from_hf(PUBLISHED["Mistral-7B-v0.1"][1]).windows == (4096,) * 32
    assert all(ModelConfig.from_hf(PUBLISHED[name][1]).windows == ()
               for name in ("Qwen2.5-0.5B", "Qwen3-30B-A3B"))


@pytest.mark.parametrize("field, settings, method",
                         [("quantization_config",
                           {"activation_scheme": "dynamic", "fmt": "e4m3",
                            "quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
                          ("quantization_config",
                           {"load_in_4bit": True, "quant_method": "bitsandbytes"},
                           "bitsandbytes"),
                          ("compression_config", {"quant_method": "compressed-tensors"},
                           "compressed-tensors")], ids=["fp8", "bitsandbytes", "compressed"])
def test_quantized_weights_are_refused_as_such(field, settings, method):
    with pytest.raises(ModelError,
                       match=f"weights are quantized\n.*{field} names the method '{method}'"):
        ModelConfig.from_hf(DEEPSEEK_V3 | {field: settings})


def test_layers_for_guessing_ahead_may_be_left_out_and_no_others():
    small = ModelConfig.from_hf(DEEPSEEK_V3 | {"num_hidden_layers": 1, "vocab_size": 9})
    shapes = expected_shapes(small) | {"model.layers.1.eh_proj.weight": (7168, 14336)}
    assert map_names(shapes, small).keys() == expected_shapes(small).keys()
    for name in ("model.layers.2.eh_proj.weight", "model.layers.10.eh_proj.weight"):
        with pytest.raises(ModelError, match=f"unexpected: {name}"):
            map_names(shapes | {name: (1,)}, small)
    none = ModelConfig.from_hf(
        DEEPSEEK_V3 | {"num_hidden_layers": 1, "vocab_size": 9, "num_nextn_predict_layers": 0})
    with pytest.raises(ModelError, match="unexpected: model.layers.1.eh_proj.weight"):
        map_names(shapes, none)


NESTED: list = []
for _ in range(300):
    NESTED = [NESTED]
HOSTILE = [None, True, False, 0, -1, 1, 10**12, 10**400, 2.5, 1e300, float("nan"), float("inf"),
           "x", "8" * 9999, [], [[]], {}, {"a": [1]}, {"rope_type": []}, {"full_attention": {}},
           ["full_attention"], NESTED, [0] * 9999]


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_hostile_values_are_read_or_refused(architecture):
    """Whatever stands in a field, nothing but ModelError comes of it, its message is short,
    and nothing large is made."""
    more = {"use_sliding_window": True, "moe_intermediate_size": 10**9}
    fields = json.loads(json.dumps(explicit(architecture, OWN.get(architecture, SIZES)))) | {
        name: value for name, value in more.items() if name in READ[architecture]}
    fields.pop("layer_types", None)
    names = [*fields, "rope_scaling", "sliding_window", "max_window_layers", "layer_types",
             "sliding_window_pattern", "rope_theta", "rope_local_base_freq", "mlp_only_layers",
             "n_inner", "quantization_config", "original_max_position_embeddings",
             "partial_rotary_factor", "is_causal", "no_rope_layers",
             "no_rope_layer_interval"]
    read = refused = 0
    for name in names:
        for value in HOSTILE:
            try:
                map_names({"model.norm.weight": (1,)},
                          ModelConfig.from_hf(fields | {name: value}))
            except ModelError as error:
                assert len(str(error)) < 1000, name
                refused += "does not match" not in str(error)
                read += "does not match" in str(error)
    assert read > 200 and refused > 100


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "longrope"])
def test_hostile_rope_is_read_or_refused(kind):
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0,
            "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": True,
            "partial_rotary_factor": 1.0, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    fields = explicit("LlamaForCausalLM",
                      {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2})
    ModelConfig.from_hf(fields | {"rope_parameters": rope})
    for name in rope:
        for value in HOSTILE:
            for context in (64, "x"):
                try:
                    ModelConfig.from_hf(fields
                                        | {"rope_parameters": rope | {name: value},
                                           "max_position_embeddings": context})
                except ModelError as error:
                    assert len(str(error)) < 1000
