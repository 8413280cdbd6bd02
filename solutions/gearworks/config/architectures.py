"""How each family's `config.json` names a `ModelConfig`'s fields; what missing ones mean."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gearworks.config.fields import (
    bad_config, count, divide, flag, layer_range, not_computed, require_positive, require_sizes,
    size)
from gearworks.config.rope import RopeScaling
from gearworks.config.settings import heeded, heeded_rope


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixture of experts in some of a model's layers.

    sparse_layers: for each layer, whether it has experts instead of one feed-forward network.
    scoring: "softmax" or "sigmoid", what makes weights of the router's scores. groups,
    kept_groups, best_of_group: as for `moe.keep_best_groups`; a single group means no limit.
    scale: multiplies the weights of the chosen experts.
    swiglu_alpha, swiglu_limit: of gpt-oss, as for `gpt_oss.limited_swiglu`.
    shared_size: the feed-forward size of the network that every token visits besides, 0 for
    none.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    normalize: bool
    sparse_layers: tuple[bool, ...]
    scoring: str = "softmax"
    groups: int = 1
    kept_groups: int = 1
    best_of_group: int = 1
    scale: float = 1.0
    shared_size: int = 0
    swiglu_alpha: float | None = None
    swiglu_limit: float | None = None

    def __post_init__(self):
        require_sizes(self, "num_experts", "num_experts_per_tok", "intermediate_size", "groups",
                      "kept_groups")
        require_positive(self, "scale", *(name for name in ("swiglu_alpha", "swiglu_limit")
                                          if getattr(self, name) is not None))
        if not isinstance(self.normalize, bool):
            raise bad_config(f"norm_topk_prob is {self.normalize!r:.80}, where true or false "
                             "is needed")
        if self.shared_size:
            size("the size of the shared experts", self.shared_size)
        if self.num_experts > 100_000:              # as for layers: numbers reserve no memory
            raise bad_config(f"num_experts is {self.num_experts}, and no model has so many")
        if self.num_experts % self.groups or self.kept_groups > self.groups:
            raise bad_config(f"{self.num_experts} experts cannot form {self.groups} groups of "
                             f"which {self.kept_groups} stay")
        available = self.num_experts // self.groups * self.kept_groups
        if (self.num_experts_per_tok > available
            or self.best_of_group > self.num_experts // self.groups):
            raise bad_config(f"a token cannot choose {self.num_experts_per_tok} of {available} "
                             "experts")


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention: sizes of the compressed queries, keys and values.
    Names are Hugging Face's."""

    q_lora_rank: int | None             # None: queries are not compressed
    kv_lora_rank: int                   # the latent, from which keys and values are made
    qk_nope_head_dim: int               # of a head's query and key, the part that does not turn
    qk_rope_head_dim: int               # the part that does; all heads share one such key
    v_head_dim: int

    def __post_init__(self):
        require_sizes(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                      "v_head_dim", *(["q_lora_rank"] if self.q_lora_rank is not None else []))

    @property
    def cached_size(self) -> int:
        """Numbers that a layer keeps of each token: the latent, and the key's turning part."""
        return self.kv_lora_rank + self.qk_rope_head_dim


def family_fields(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ModelConfig`, but its architecture, from what `config.json` holds.

    Raises ModelError for a field that is missing or impossible, or a setting that the engine
    does not compute.
    """
    try:
        defaults = {**_COMMON_DEFAULTS, **_DEFAULTS.get(architecture, {})}
        return _FAMILIES[architecture](defaults | heeded(architecture, config))
    except KeyError as missing:
        raise bad_config(f"the field {missing} is missing") from None


def _decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all families but GPT-2 name in the same way."""
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    head_dim = config.get("head_dim")
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": divide(config["hidden_size"], heads) if head_dim is None else head_dim,
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config["rms_norm_eps"],
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


def _swish_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Llama, which most families have in common."""
    return _decoder(config) | _rope(config)


def _rope(config: Mapping[str, Any], understood: Callable[[dict[str, Any]], dict[str, Any]]
          = lambda parameters: parameters) -> dict[str, Any]:
    """transformers 5 has theta and scaling in `rope_parameters`, older files in two fields.
    understood: makes of such an object what other families would say."""
    newer, older = (understood(_object(config, name))
                    for name in ("rope_parameters", "rope_scaling"))
    if newer and older and newer != older:
        raise bad_config("rope_parameters and rope_scaling contradict each other")
    parameters = {"rope_theta": config["rope_theta"]} | (newer or older)
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise not_computed("RoPE of its own for each kind of layer is not supported in this "
                           "family")
    original = config.get("original_max_position_embeddings")
    if original is not None:                                # where it stands outside, it wins
        parameters["original_max_position_embeddings"] = original
    return {"rope_theta": parameters["rope_theta"],
            "rope_scaling": _scaling(parameters, config)}


def _scaling(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    context = size("max_position_embeddings", config["max_position_embeddings"])
    return RopeScaling.from_hf(heeded_rope(parameters), context)


def _object(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = config.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise bad_config(f"{field} is {value!r:.80}, where an object is needed")
    return dict(value or {})


def _biases(config: Mapping[str, Any]) -> dict[str, Any]:
    """Families that have a bias in all four projections of attention, or in none."""
    biased = flag(config, "attention_bias")
    return {"qkv_bias": biased, "o_bias": biased}


def _llama(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _biases(config)


def _same_window(config: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    """Families whose layers all have the same window, or none."""
    layers = layer_range(config["num_hidden_layers"])
    kind = "full_attention" if window is None else "sliding_attention"
    types = config.get("layer_types")
    if types is not None and _layer_types(types, len(layers)) != [kind] * len(layers):
        raise not_computed("layer_types says otherwise than sliding_window, and all layers of "
                           "this family are alike")
    return _windows([kind] * len(layers), window)


def _qwen_windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """The layers with a window: those that `layer_types` names, else all but the first ones."""
    window = config["sliding_window"] if flag(config, "use_sliding_window") else None
    layers, types = layer_range(config["num_hidden_layers"]), config.get("layer_types")
    if types is None:
        first = count(config, "max_window_layers")
        types = ["full_attention" if window is None or layer < first else "sliding_attention"
                 for layer in layers]
    return _windows(_layer_types(types, len(layers)), window)


def _windows(types: list[str], window: int | None) -> dict[str, Any]:
    if "sliding_attention" not in types:
        return {}
    window = size("sliding_window", window)
    return {"windows": tuple(window if kind == "sliding_attention" else None for kind in types)}


def _layer_types(types: Any, layers: int) -> list[str]:
    known = ("full_attention", "sliding_attention")
    if (not isinstance(types, list) or len(types) != layers
        or not all(kind in known for kind in types)):
        raise bad_config(f"layer_types is {types!r:.120}, where one of {known} is needed for "
                         "each layer")
    return types


def _mistral(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _same_window(config, config["sliding_window"])


def _qwen2(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _qwen_windows(config) | {"qkv_bias": True}


def _qwen3(config: Mapping[str, Any]) -> dict[str, Any]:
    return (_swish_decoder(config) | _qwen_windows(config) | _biases(config)
            | {"qk_norm": True})


def _phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    fields, partial = _decoder(config), config["partial_rotary_factor"]

    def longrope(parameters: dict[str, Any]) -> dict[str, Any]:
        nonlocal partial
        kind = parameters.pop("rope_type", parameters.pop("type", "default"))
        if kind not in ("default", "longrope", "su", "yarn"):    # two old names of longrope
            raise not_computed(f"the RoPE scaling {kind!r:.80} is not supported in this family")
        partial = parameters.pop("partial_rotary_factor", None) or partial
        return parameters if kind == "default" else parameters | {"rope_type": "longrope"}

    fields |= _rope(config, longrope)
    if type(partial) not in (int, float) or not 0 < partial <= 1:
        raise bad_config(f"partial_rotary_factor is {partial!r:.80}, where a number up to 1 is "
                         "needed")
    if partial != 1:
        fields["rotary_dim"] = int(size("head_dim", fields["head_dim"]) * partial)
    window, layers = config["sliding_window"], layer_range(config["num_hidden_layers"])
    kind = "full_attention" if window is None else "sliding_attention"
    return fields | _windows([kind] * len(layers), window)


def _smollm3(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, turning = layer_range(config["num_hidden_layers"]), config.get("no_rope_layers")
    if turning is None:                 # the list says which layers do turn, for all its name
        interval = size("no_rope_layer_interval", config["no_rope_layer_interval"])
        turning = [(layer + 1) % interval != 0 for layer in layers]
    if not isinstance(turning, list) or len(turning) < len(layers) or not all(
            each in (0, 1) for each in turning):
        raise bad_config(f"no_rope_layers is {turning!r:.120}, where 1 or 0 is needed for each "
                         "layer")
    turns = tuple(map(bool, turning[:len(layers)]))
    window, types = config["sliding_window"], config.get("layer_types")
    if types is None:                   # the layers that do not turn have it, if any
        slides = flag(config, "use_sliding_window") and window is not None
        types = ["sliding_attention" if slides and not each else "full_attention"
                 for each in turns]
    return (_swish_decoder(config) | _windows(_layer_types(types, len(layers)), window)
            | _biases(config) | {"rope_layers": () if all(turns) else turns})


def _mixtral(config: Mapping[str, Any]) -> dict[str, Any]:
    fields = _mistral(config)
    everywhere = (True,) * len(layer_range(config["num_hidden_layers"]))
    experts = ExpertsConfig(config["num_local_experts"], config["num_experts_per_tok"],
                            config["intermediate_size"], True, everywhere)
    return fields | {"experts": experts}


# What a file without settings of its RoPE means, in this family alone.
_GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "truncate": False, "original_max_position_embeddings": 4096}


def _gpt_oss(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, types = layer_range(config["num_hidden_layers"]), config.get("layer_types")
    if types is None:
        types = ["full_attention" if layer % 2 else "sliding_attention" for layer in layers]
    silent = not config.get("rope_parameters") and not config.get("rope_scaling")
    everywhere = (True,) * len(layers)
    experts = ExpertsConfig(config["num_local_experts"], config["num_experts_per_tok"],
                            config["intermediate_size"], True, everywhere,
                            swiglu_alpha=config["swiglu_alpha"],
                            swiglu_limit=config["swiglu_limit"])
    for name in ("swiglu_alpha", "swiglu_limit"):
        if config[name] is None:
            raise bad_config(f"{name} is None, where a number is needed")
    return (_decoder(config)
            | _rope(config, lambda parameters: dict(_GPT_OSS_ROPE) if silent else parameters)
            | _windows(_layer_types(types, len(layers)), config["sliding_window"])
            | _biases(config) | {"experts": experts})


def _qwen3_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    step = size("decoder_sparse_step", config["decoder_sparse_step"])
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise bad_config(f"mlp_only_layers is {dense!r:.80}, where a list is needed")
    layers = layer_range(config["num_hidden_layers"])
    sparse = tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)
    window = config["sliding_window"] if flag(config, "use_sliding_window") else None
    fields = _swish_decoder(config) | _same_window(config, window)
    experts = ExpertsConfig(config["num_experts"], config["num_experts_per_tok"],
                            config["moe_intermediate_size"], config["norm_topk_prob"], sparse)
    return fields | {"qk_norm": True, "experts": experts}


def _deepseek(config: Mapping[str, Any], version: int) -> dict[str, Any]:
    scoring, methods = {2: ("softmax", ("greedy", "group_limited_greedy")),
                        3: ("sigmoid", ("noaux_tc",))}[version]
    if config["topk_method"] not in methods:
        raise not_computed(f"topk_method is {config['topk_method']!r:.80}; this engine "
                           f"computes {' or '.join(map(repr, methods))} only")
    if version == 3 and config.get("head_dim") not in (config["qk_rope_head_dim"], None):
        raise bad_config(f"head_dim is {config['head_dim']!r:.80}, and qk_rope_head_dim is "
                         f"{config['qk_rope_head_dim']!r:.80}: both are the part that turns")
    latent = LatentConfig(config["q_lora_rank"], config["kv_lora_rank"],
                          config["qk_nope_head_dim"], config["qk_rope_head_dim"],
                          config["v_head_dim"])
    dense, grouped = count(config, "first_k_dense_replace"), config["topk_method"] != "greedy"
    expert_size = size("moe_intermediate_size", config["moe_intermediate_size"])
    experts = ExpertsConfig(
        config["n_routed_experts"], config["num_experts_per_tok"], expert_size,
        # DeepSeek-V2 of transformers never normalizes, whatever its configuration says
        normalize=config["norm_topk_prob"] if version == 3 else False,
        sparse_layers=tuple(layer >= dense
                            for layer in layer_range(config["num_hidden_layers"])),
        scoring=scoring, groups=config["n_group"] if grouped else 1,
        kept_groups=config["topk_group"] if grouped else 1,
        best_of_group=version - 1, scale=config["routed_scaling_factor"],
        shared_size=count(config, "n_shared_experts") * expert_size)
    heads = config["num_attention_heads"]
    if config.get("num_key_value_heads", heads) not in (heads, None):
        raise bad_config(f"num_key_value_heads is {config['num_key_value_heads']!r:.80}, and "
                         f"each of the {heads!r:.80} heads makes its own keys from the latent")
    return _swish_decoder(config) | {
        "head_dim": latent.qk_rope_head_dim, "latent": latent, "experts": experts,
        "rope_interleaved": version == 2 or flag(config, "rope_interleave"),
        "prediction_layers": count(config, "num_nextn_predict_layers") if version == 3 else 0}


def _gemma2(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, types = layer_range(config["num_hidden_layers"]), config.get("layer_types")
    if types is None:
        types = ["full_attention" if layer % 2 else "sliding_attention" for layer in layers]
    return (_decoder(config) | _rope(config)
            | _windows(_layer_types(types, len(layers)), config["sliding_window"])
            | {"query_pre_attn_scalar": config["query_pre_attn_scalar"],
               "attention_softcap": config["attn_logit_softcapping"],
               "logit_softcap": config["final_logit_softcapping"]})


def _gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    # transformers 5: one object for each kind of layer
    rope = _object(config, "rope_parameters")
    if rope.keys() - {"full_attention", "sliding_attention"}:
        raise bad_config(f"rope_parameters is {rope!r:.120}, where one object is needed for "
                         "each kind of layer")
    whole = ({"rope_theta": config["rope_theta"]} | _object(rope, "full_attention")
             | _object(config, "rope_scaling"))
    local = {"rope_theta": config["rope_local_base_freq"]} | _object(rope, "sliding_attention")
    if _scaling(local, config) is not None:
        raise not_computed("RoPE scaling in the layers with a window is not supported")
    layers, types = config["num_hidden_layers"], config.get("layer_types")
    if types is None:
        windows = gemma3_windows(config["sliding_window"], layers,
                                 config["sliding_window_pattern"])
    else:
        windows = _windows(_layer_types(types, len(layer_range(layers))),
                           config["sliding_window"])
    return (_decoder(config) | windows
            | {"qk_norm": True, "rope_theta": whole["rope_theta"],
               "rope_scaling": _scaling(whole, config), "rope_local_theta": local["rope_theta"],
               "query_pre_attn_scalar": config["query_pre_attn_scalar"]})


def gemma3_windows(window: int | None, layers: int, pattern: int) -> dict[str, Any]:
    """Of every `pattern` layers, the last looks at everything, the others over the window."""
    pattern = size("sliding_window_pattern", pattern)
    types = ["sliding_attention" if (layer + 1) % pattern else "full_attention"
             for layer in layer_range(layers)]
    return _windows(types, window)


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    D, heads = config["n_embd"], config["n_head"]
    inner = config.get("n_inner")
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": D,
        "intermediate_size": 4 * size("n_embd", D) if inner is None else inner,
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": divide(D, heads),
        "max_position_embeddings": config["n_positions"],
        "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_theta": 10_000.0,                                  # unused: positions are learned
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "MistralForCausalLM": _mistral,
    "Olmo2ForCausalLM": _swish_decoder,
    "Phi3ForCausalLM": _phi3,
    "SmolLM3ForCausalLM": _smollm3,
    "MixtralForCausalLM": _mixtral,
    "GptOssForCausalLM": _gpt_oss,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "GPT2LMHeadModel": _gpt2,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "DeepseekV2ForCausalLM": lambda config: _deepseek(config, 2),
    "DeepseekV3ForCausalLM": lambda config: _deepseek(config, 3),
}

SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)

# What a field that a config.json leaves out means: the defaults of the configuration classes of
# transformers. Sizes without which no file was ever published have none here, so that a damaged
# file is not taken for a whole one.
_COMMON_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False}
_QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_DEEPSEEK_DEFAULTS = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
                      "qk_rope_head_dim": 64, "v_head_dim": 128}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2ForCausalLM": _QWEN_DEFAULTS,
    "Qwen3ForCausalLM": _QWEN_DEFAULTS | {"head_dim": 128},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Olmo2ForCausalLM": {"rms_norm_eps": 1e-5},
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "sliding_window": None,
                        "partial_rotary_factor": 1.0,
                        "original_max_position_embeddings": 4096},
    "SmolLM3ForCausalLM": {"num_key_value_heads": 4, "sliding_window": None,
                           "no_rope_layer_interval": 4, "rope_theta": 2e6,
                           "tie_word_embeddings": True},
    "MixtralForCausalLM": {"num_key_value_heads": 8, "sliding_window": None,
                           "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8,
                           "num_experts_per_tok": 2},
    "GptOssForCausalLM": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                          "rms_norm_eps": 1e-5, "rope_theta": 150_000.0,
                          "num_local_experts": 128, "num_experts_per_tok": 4,
                          "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
    "Qwen3MoeForCausalLM": {"num_key_value_heads": 4, "sliding_window": 4096,
                            "decoder_sparse_step": 1, "num_experts": 128,
                            "moe_intermediate_size": 768, "num_experts_per_tok": 8,
                            "norm_topk_prob": False},
    "GPT2LMHeadModel": {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "Gemma2ForCausalLM": {"num_key_value_heads": 4, "head_dim": 256,
                          "query_pre_attn_scalar": 256, "sliding_window": 4096,
                          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                          "tie_word_embeddings": True},
    "Gemma3ForCausalLM": {"num_key_value_heads": 4, "head_dim": 256,
                          "query_pre_attn_scalar": 256, "sliding_window": 4096,
                          "sliding_window_pattern": 6, "rope_theta": 1e6,
                          "rope_local_base_freq": 10_000.0, "tie_word_embeddings": True},
    "DeepseekV2ForCausalLM": _DEEPSEEK_DEFAULTS | {
        "first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2,
        "moe_intermediate_size": 1407, "routed_scaling_factor": 1.0, "topk_method": "greedy"},
    "DeepseekV3ForCausalLM": _DEEPSEEK_DEFAULTS | {
        "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1,
        "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_interleave": True,
        "topk_method": "noaux_tc"}}
