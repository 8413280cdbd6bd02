"""A model's shape as the `config.json` that `transformers` 5 reads; `architectures` undoes it.

Written for the GGUF files that are converted, so it knows what such a file can say.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gearworks.config.model_config import ModelConfig
from gearworks.config.rope import RopeScaling
from gearworks.errors import ModelError

Settings = dict[str, Any]


def hf_config(config: ModelConfig) -> Settings:
    """Everything that `config.json` says of a model; `ModelConfig.from_hf` is its inverse.

    Raises ModelError for a model that has no such form: RoPE with a factor for each pair, or
    windows in a family whose files do not have them.
    """
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "factors":
        raise _impossible(config, "each pair of its RoPE has a factor of its own, which no "
                          "config.json can say")
    return ({"architectures": [config.architecture], "dtype": "float32",
             "vocab_size": config.vocab_size,
             "tie_word_embeddings": config.tie_word_embeddings}
            | _FAMILIES[config.architecture](config))


def _decoder(config: ModelConfig) -> Settings:
    rope = _rope(config.rope_theta, config.rope_scaling)
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "attention_bias": config.o_bias,
        "mlp_bias": False,
    }


def _rope(theta: float, scaling: RopeScaling | None) -> Settings:
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    used = {"linear": ("factor",), "dynamic": ("factor",),
            "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor",
                       "high_freq_factor"),
            "longrope": ("factor", "original_max_position_embeddings", "short_factor",
                         "long_factor", "attention_factor"),
            "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                     "attention_factor", "mscale", "mscale_all_dim", "truncate")}
    values = {name: getattr(scaling, name) for name in used[scaling.kind]}
    return {"rope_type": scaling.kind, "rope_theta": theta} | {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items() if value is not None}


def _without_windows(config: ModelConfig) -> Settings:
    if config.windows:
        raise _impossible(config, "only some of its layers have a window")
    return _decoder(config)


def _window(config: ModelConfig) -> Settings:
    return {"sliding_window": config.windows[0] if config.windows else None}


def _kinds_of_layers(config: ModelConfig) -> tuple[list[str], int | None]:
    """Which layers have a window, and the window; None if no layer has one."""
    kinds = ["full_attention" if config.window(layer) is None else "sliding_attention"
             for layer in range(config.num_hidden_layers)]
    return kinds, next((window for window in config.windows if window is not None), None)


def _phi3(config: ModelConfig) -> Settings:
    settings = _decoder(config) | _window(config) | {"model_type": "phi3", "pad_token_id": None}
    if config.rope_scaling is not None:
        settings["original_max_position_embeddings"] = (
            config.rope_scaling.original_max_position_embeddings)
    if config.rotary_dim is not None:
        settings["rope_parameters"]["partial_rotary_factor"] = (config.rotary_dim
                                                                / config.head_dim)
    return settings


def _smollm3(config: ModelConfig) -> Settings:
    return _without_windows(config) | {
        "model_type": "smollm3", "pad_token_id": None,
        "no_rope_layers": [int(config.turns(layer))
                           for layer in range(config.num_hidden_layers)]}


def _mixtral(config: ModelConfig) -> Settings:
    return _decoder(config) | _window(config) | {
        "model_type": "mixtral", "num_local_experts": config.experts.num_experts,
        "num_experts_per_tok": config.experts.num_experts_per_tok}


def _gpt_oss(config: ModelConfig) -> Settings:
    experts, (kinds, window) = config.experts, _kinds_of_layers(config)
    return _decoder(config) | {
        "model_type": "gpt_oss", "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok, "layer_types": kinds,
        "sliding_window": window, "swiglu_alpha": experts.swiglu_alpha,
        "swiglu_limit": experts.swiglu_limit}


def _qwen3_moe(config: ModelConfig) -> Settings:
    experts = config.experts
    dense = [layer for layer, sparse in enumerate(experts.sparse_layers) if not sparse]
    return _without_windows(config) | {
        "model_type": "qwen3_moe", "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "moe_intermediate_size": experts.intermediate_size, "mlp_only_layers": dense,
        "decoder_sparse_step": 1, "norm_topk_prob": experts.normalize}


def _gpt2(config: ModelConfig) -> Settings:
    return {
        "model_type": "gpt2", "n_embd": config.hidden_size,
        "n_inner": config.intermediate_size, "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads, "n_positions": config.max_position_embeddings,
        "layer_norm_epsilon": config.rms_norm_eps, "activation_function": "gelu_new"}


def _gemma2(config: ModelConfig) -> Settings:
    settings, (kinds, window) = _decoder(config), _kinds_of_layers(config)
    del settings["hidden_act"], settings["mlp_bias"], settings["rope_theta"]
    return settings | {
        "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "layer_types": kinds,
        "sliding_window": window, "query_pre_attn_scalar": config.query_pre_attn_scalar,
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap}


def _gemma3(config: ModelConfig) -> Settings:
    settings = _decoder(config)
    del settings["hidden_act"], settings["mlp_bias"], settings["rope_theta"]
    kinds, window = _kinds_of_layers(config)
    return settings | {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds, "sliding_window": window,
        "query_pre_attn_scalar": config.query_pre_attn_scalar,
        "rope_parameters": {"full_attention": settings["rope_parameters"],
                            "sliding_attention": _rope(config.rope_local_theta, None)}}


def _deepseek(config: ModelConfig) -> Settings:
    latent, experts = config.latent, config.experts
    settings = _decoder(config) | {
        name: getattr(latent, name) for name in (
            "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
            "v_head_dim")}
    settings |= {
        "first_k_dense_replace": experts.sparse_layers.count(False),
        "n_routed_experts": experts.num_experts,
        "n_shared_experts": experts.shared_size // experts.intermediate_size,
        "num_experts_per_tok": experts.num_experts_per_tok,
        "moe_intermediate_size": experts.intermediate_size,
        "routed_scaling_factor": experts.scale, "n_group": experts.groups,
        "topk_group": experts.kept_groups, "norm_topk_prob": experts.normalize}
    if config.architecture == "DeepseekV3ForCausalLM":
        return settings | {"model_type": "deepseek_v3", "rope_interleave": True}
    del settings["head_dim"]
    return settings | {"model_type": "deepseek_v2", "topk_method": (
        "greedy" if experts.groups == 1 else "group_limited_greedy")}


_FAMILIES: Mapping[str, Callable[[ModelConfig], Settings]] = {
    "LlamaForCausalLM": lambda config: _without_windows(config) | {"model_type": "llama"},
    "Qwen2ForCausalLM": lambda config: _without_windows(config) | {"model_type": "qwen2"},
    "Qwen3ForCausalLM": lambda config: _without_windows(config) | {"model_type": "qwen3"},
    "MistralForCausalLM": lambda config: (_decoder(config) | _window(config)
                                          | {"model_type": "mistral"}),
    "GptOssForCausalLM": _gpt_oss, "Gemma2ForCausalLM": _gemma2,
    "Olmo2ForCausalLM": lambda config: _without_windows(config) | {"model_type": "olmo2"},
    "Phi3ForCausalLM": _phi3, "SmolLM3ForCausalLM": _smollm3,
    "MixtralForCausalLM": _mixtral, "Qwen3MoeForCausalLM": _qwen3_moe,
    "GPT2LMHeadModel": _gpt2, "Gemma3ForCausalLM": _gemma3,
    "DeepseekV2ForCausalLM": _deepseek, "DeepseekV3ForCausalLM": _deepseek}


def _impossible(config: ModelConfig, why: str) -> ModelError:
    return ModelError(f"cannot convert this {config.architecture}", why,
                      "run the file as it is, which the engine can; to compare, take its "
                      "original folder")
