"""What a model's `config.json`, or a GGUF file's metadata, says about its shape.

Only the fields that change a computation are kept. A field that this engine would have to ignore
is an error, never a silent approximation: a model that runs with the wrong RoPE still speaks English.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gearworks.errors import ModelError
from gearworks.rope_scaling import RopeScaling


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixture of experts in some of a model's layers.

    sparse_layers: for each layer, whether it has experts instead of one feed-forward network. scoring: "softmax" or
    "sigmoid", what makes weights of the router's scores. groups, kept_groups, best_of_group: as for
    `moe.keep_best_groups`; a single group means no limit. scale: multiplies the weights of the chosen experts.
    shared_size: the feed-forward size of the network that every token visits besides, 0 for none.
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

    def __post_init__(self):
        _require_sizes(self, "num_experts", "num_experts_per_tok", "intermediate_size", "groups", "kept_groups")
        _require_positive(self, "scale")
        if not isinstance(self.normalize, bool):
            raise _bad_config(f"norm_topk_prob is {self.normalize!r:.80}, where true or false is needed")
        if self.shared_size:
            _size("the size of the shared experts", self.shared_size)
        if self.num_experts % self.groups or self.kept_groups > self.groups:
            raise _bad_config(f"{self.num_experts} experts cannot form {self.groups} groups of which {self.kept_groups} "
                              "stay")
        available = self.num_experts // self.groups * self.kept_groups
        if self.num_experts_per_tok > available or self.best_of_group > self.num_experts // self.groups:
            raise _bad_config(f"a token cannot choose {self.num_experts_per_tok} of {available} experts")


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention: sizes of the compressed queries, keys and values. Names are Hugging Face's."""

    q_lora_rank: int | None             # None: queries are not compressed
    kv_lora_rank: int                   # the latent, from which keys and values are made
    qk_nope_head_dim: int               # of a head's query and key, the part that does not turn
    qk_rope_head_dim: int               # the part that does; all heads share one such key
    v_head_dim: int

    def __post_init__(self):
        _require_sizes(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                       *(["q_lora_rank"] if self.q_lora_rank is not None else []))

    @property
    def cached_size(self) -> int:
        """Numbers that a layer keeps of each token: the latent, and the key's turning part."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, in Hugging Face's names.

    D is `hidden_size`, F `intermediate_size`, L `num_hidden_layers`, H `num_attention_heads`,
    K `num_key_value_heads`, d `head_dim`, V `vocab_size`; the context is `max_position_embeddings` tokens.
    What follows `tie_word_embeddings` belongs to some families only.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float                 # of GPT-2, its layer norm's eps
    rope_theta: float
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    windows: tuple[int | None, ...] = ()            # how many tokens each layer looks back, None for all; () if none does
    qkv_bias: bool = False                          # Qwen2
    qk_norm: bool = False                           # Qwen3, Gemma-3
    experts: ExpertsConfig | None = None            # Mixtral, Qwen3-MoE, DeepSeek
    latent: LatentConfig | None = None              # DeepSeek
    rope_local_theta: float | None = None           # Gemma-3: of the layers with a window
    query_pre_attn_scalar: float | None = None      # Gemma-3: scores are divided by its root instead of that of d
    rope_interleaved: bool = False                  # DeepSeek: rows of a RoPE pair are neighbours
    prediction_layers: int = 0                      # DeepSeek-V3: layers after the last, for guessing ahead; never run

    def window(self, layer: int) -> int | None:
        """How many tokens a query of this layer looks back, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    def __post_init__(self):
        _require_sizes(self, "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                       "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")
        _require_positive(self, "rms_norm_eps", "rope_theta")
        if not isinstance(self.tie_word_embeddings, bool):
            raise _bad_config(f"tie_word_embeddings is {self.tie_word_embeddings!r:.80}, where true or false is needed")
        if self.num_attention_heads % self.num_key_value_heads:
            raise _bad_config(f"{self.num_attention_heads} query heads cannot share "
                              f"{self.num_key_value_heads} key/value heads evenly")
        if self.head_dim % 2 and self.architecture != "GPT2LMHeadModel":
            raise _bad_config(f"head_dim is {self.head_dim}, and RoPE rotates pairs")
        if self.rope_scaling is not None and self.rope_scaling.kind == "dynamic" and self.head_dim == 2:
            raise _bad_config("dynamic RoPE scaling needs heads of more than one pair")
        if self.rope_scaling is not None and self.rope_scaling.kind == "yarn" and self.rope_theta <= 1:
            raise _bad_config(f"rope_theta is {self.rope_theta}, and YaRN needs pairs that get slower one by one")
        for window in self.windows:
            if window is not None:
                _size("sliding_window", window)
        for name in ("rope_local_theta", "query_pre_attn_scalar"):
            if getattr(self, name) is not None:
                _require_positive(self, name)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read the object that `config.json` holds.

        Raises ModelError for an unsupported architecture (by name, with the supported ones), a missing or impossible
        field, and for any setting that the engine does not compute.
        """
        if not isinstance(config, Mapping):
            raise _bad_config("it is not a JSON object")
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            raise _bad_config("it names no architecture")
        architecture = architectures[0]
        if not isinstance(architecture, str) or architecture not in _FAMILIES:
            raise _unsupported_architecture(architecture)
        _refuse_other_weights(config)
        _require_only(config, is_causal=True, per_layer_config=None)
        try:
            fields = _FAMILIES[architecture]({**_COMMON_DEFAULTS, **_DEFAULTS.get(architecture, {}), **config})
        except KeyError as missing:
            raise _bad_config(f"the field {missing} is missing") from None
        return cls(architecture=architecture, **fields)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tied: bool) -> "ModelConfig":
        """Read a GGUF file's metadata. `tied`: whether the file has no `output.weight` of its own.

        Raises ModelError as `from_hf` does.
        """
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in _GGUF_ARCHITECTURES:
            raise ModelError(f"the GGUF architecture {name!r} is not supported",
                             "this engine reads " + ", ".join(_GGUF_ARCHITECTURES) + " from GGUF files",
                             "use the model's safetensors, if its family is one of "
                             + ", ".join(SUPPORTED_ARCHITECTURES))

        def field(key: str, kind: type, *default):
            value = metadata.get(f"{name}.{key}", *default)
            if value is None:
                raise _bad_config(f"the metadata key {name}.{key} is missing")
            if type(value) not in (kind, int):              # a whole number may stand for a float
                raise _bad_config(f"the metadata key {name}.{key} is a {type(value).__name__}, not a {kind.__name__}")
            return value

        heads, layers = field("attention.head_count", int), field("block_count", int)
        context = field("context_length", int)
        head_dim = field("attention.key_length", int, 0) or _divide(field("embedding_length", int), heads)
        if field("attention.value_length", int, head_dim) != head_dim:
            raise _bad_config("keys and values of different sizes are not supported")
        if field("rope.dimension_count", int, head_dim) != head_dim:
            raise _bad_config("RoPE over a part of each head is not supported")
        if field("expert_count", int, 0):
            raise _bad_config("a mixture of experts is read from safetensors only")
        # llama.cpp scales by a factor whether or not a type is named with it
        scaling = field("rope.scaling.type", str, "none")
        factors = {field(key, float, 1) for key in ("rope.scaling.factor", "rope.scale_linear")} - {0, 1}
        if scaling not in ("none", "linear") or len(factors) > 1:
            raise _bad_config(f"RoPE scaling ({scaling!r:.80}, factors {sorted(factors)}) is not supported")
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list):
            raise _bad_config("the metadata key tokenizer.ggml.tokens is missing, or no list of strings")
        if field("attn_logit_softcapping", float, 0) or field("final_logit_softcapping", float, 0):
            raise _bad_config("soft caps of scores or logits are not computed here")
        window = field("attention.sliding_window", int, 0)
        family: dict[str, Any] = {}
        if name == "gemma3":
            # The file leaves the scale of the scores to its reader: d in all sizes but the largest, which has 62 layers
            scalar = _divide(field("embedding_length", int), heads) if layers == 62 else head_dim
            family = _gemma3_windows(window, layers, 6) | {
                "qk_norm": True, "query_pre_attn_scalar": scalar,
                "rope_local_theta": field("rope.freq_base_swa", float, 10_000.0)}
        elif window and window < context:
            raise _bad_config("a sliding window is read from safetensors only")
        return cls(
            architecture=_GGUF_ARCHITECTURES[name],
            vocab_size=len(tokens),
            hidden_size=field("embedding_length", int),
            intermediate_size=field("feed_forward_length", int),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=field("attention.head_count_kv", int, heads),
            head_dim=head_dim,
            max_position_embeddings=context,
            # GGUF keeps the float32 nearest to the 1e-05 that was meant; six digits give it back
            rms_norm_eps=float(f"{field('attention.layer_norm_rms_epsilon', float):.6g}"),
            rope_theta=field("rope.freq_base", float, 10_000.0),
            tie_word_embeddings=tied,
            rope_scaling=RopeScaling.from_hf({"type": "linear", "factor": factors.pop()}, context) if factors else None,
            **{"qkv_bias": name == "qwen2", "qk_norm": name == "qwen3"} | family,
        )

    def to_hf(self) -> dict[str, Any]:
        """The object to write as `config.json`, as `transformers` 5 reads it; `from_hf` is its inverse.

        Raises ModelError for a model that has no plain form: of another family than Llama, Qwen2 and Qwen3, or with
        scaled RoPE.
        """
        families = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
        if self.architecture not in families or self.rope_scaling is not None or self.windows:
            raise ModelError(f"cannot convert a model of the architecture {self.architecture}",
                             "only plain Llama, Qwen2 and Qwen3 models can be written as a Hugging Face folder",
                             "run the file as it is, which the engine can; to compare, take the folder it was made from")
        return {
            "architectures": [self.architecture],
            "model_type": families[self.architecture],
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "dtype": "float32",
        }


def _decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all families but GPT-2 name in the same way."""
    _require_only(config, attention_bias=False, mlp_bias=False, partial_rotary_factor=1.0, attn_logit_softcapping=None,
                  final_logit_softcapping=None)
    heads, kv_heads, head_dim = config["num_attention_heads"], config.get("num_key_value_heads"), config.get("head_dim")
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
        "head_dim": _divide(config["hidden_size"], heads) if head_dim is None else head_dim,
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config["rms_norm_eps"],
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


def _swish_decoder(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all families have in common but GPT-2 and Gemma-3."""
    _require_only(config, hidden_act="silu")
    return _decoder(config) | _rope(config)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 keeps theta and scaling together in `rope_parameters`; older files have two fields."""
    newer, older = _object(config, "rope_parameters"), _object(config, "rope_scaling")
    if newer and older and newer != older:
        raise _bad_config("rope_parameters and rope_scaling contradict each other")
    parameters = {"rope_theta": config["rope_theta"]} | (newer or older)
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise _bad_config("RoPE of its own for each kind of layer is not supported in this family")
    if config.get("original_max_position_embeddings") is not None:             # where it stands outside, it wins
        parameters["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return {"rope_theta": parameters["rope_theta"], "rope_scaling": _scaling(parameters, config)}


def _scaling(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    _require_only(parameters, partial_rotary_factor=1.0)
    return RopeScaling.from_hf(parameters, _size("max_position_embeddings", config["max_position_embeddings"]))


def _object(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = config.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise _bad_config(f"{field} is {value!r:.80}, where an object is needed")
    return dict(value or {})


def _same_window(config: Mapping[str, Any], window: int | None) -> dict[str, Any]:
    """Families whose layers all have the same window, or none."""
    layers = _layer_range(config["num_hidden_layers"])
    kind = "full_attention" if window is None else "sliding_attention"
    types = config.get("layer_types")
    if types is not None and _layer_types(types, len(layers)) != [kind] * len(layers):
        raise _bad_config("layer_types says otherwise than sliding_window, and all layers of this family are alike")
    return _windows([kind] * len(layers), window)


def _qwen_windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """The layers that look back over a window only: those that `layer_types` names, else all but the first ones."""
    window = config["sliding_window"] if _flag(config, "use_sliding_window") else None
    layers, types = _layer_range(config["num_hidden_layers"]), config.get("layer_types")
    if types is None:
        first = _count(config, "max_window_layers")
        types = ["full_attention" if window is None or layer < first else "sliding_attention" for layer in layers]
    return _windows(_layer_types(types, len(layers)), window)


def _windows(types: list[str], window: int | None) -> dict[str, Any]:
    if "sliding_attention" not in types:
        return {}
    window = _size("sliding_window", window)
    return {"windows": tuple(window if kind == "sliding_attention" else None for kind in types)}


def _layer_types(types: Any, layers: int) -> list[str]:
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or not all(kind in known for kind in types):
        raise _bad_config(f"layer_types is {types!r:.120}, where one of {known} is needed for each layer")
    return types


def _mistral(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _same_window(config, config["sliding_window"])


def _qwen2(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _qwen_windows(config) | {"qkv_bias": True}


def _qwen3(config: Mapping[str, Any]) -> dict[str, Any]:
    return _swish_decoder(config) | _qwen_windows(config) | {"qk_norm": True}


def _mixtral(config: Mapping[str, Any]) -> dict[str, Any]:
    return _mistral(config) | {"experts": ExpertsConfig(
        config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], True,
        (True,) * len(_layer_range(config["num_hidden_layers"])))}


def _qwen3_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    step, dense = _size("decoder_sparse_step", config["decoder_sparse_step"]), config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise _bad_config(f"mlp_only_layers is {dense!r:.80}, where a list is needed")
    layers = _layer_range(config["num_hidden_layers"])
    sparse = tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)
    experts = config.get("num_experts", config.get("num_local_experts", 128))
    window = config["sliding_window"] if _flag(config, "use_sliding_window") else None
    return _swish_decoder(config) | _same_window(config, window) | {"qk_norm": True, "experts": ExpertsConfig(
        experts, config["num_experts_per_tok"], config["moe_intermediate_size"], config["norm_topk_prob"], sparse)}


def _deepseek(config: Mapping[str, Any], version: int) -> dict[str, Any]:
    scoring, methods = {2: ("softmax", ("greedy", "group_limited_greedy")), 3: ("sigmoid", ("noaux_tc",))}[version]
    _require_only(config, moe_layer_freq=1, scoring_func=scoring)
    if config["topk_method"] not in methods:
        raise _bad_config(f"topk_method is {config['topk_method']!r:.80}, which is not supported")
    latent = LatentConfig(config["q_lora_rank"], config["kv_lora_rank"], config["qk_nope_head_dim"],
                          config["qk_rope_head_dim"], config["v_head_dim"])
    dense, grouped = _count(config, "first_k_dense_replace"), config["topk_method"] != "greedy"
    expert_size = _size("moe_intermediate_size", config["moe_intermediate_size"])
    experts = ExpertsConfig(
        config["n_routed_experts"], config["num_experts_per_tok"], expert_size,
        # DeepSeek-V2 of transformers never normalizes, whatever its configuration says
        normalize=config["norm_topk_prob"] if version == 3 else False,
        sparse_layers=tuple(layer >= dense for layer in _layer_range(config["num_hidden_layers"])), scoring=scoring,
        groups=config["n_group"] if grouped else 1, kept_groups=config["topk_group"] if grouped else 1,
        best_of_group=version - 1, scale=config["routed_scaling_factor"],
        shared_size=_count(config, "n_shared_experts") * expert_size)
    heads = config["num_attention_heads"]
    if config.get("num_key_value_heads", heads) not in (heads, None):
        raise _bad_config(f"num_key_value_heads is {config['num_key_value_heads']!r:.80}, and each of the "
                          f"{heads!r:.80} heads makes its own keys from the latent")
    return _swish_decoder(config) | {
        "head_dim": latent.qk_rope_head_dim, "latent": latent, "experts": experts,
        "rope_interleaved": version == 2 or _flag(config, "rope_interleave"),
        "prediction_layers": _count(config, "num_nextn_predict_layers") if version == 3 else 0}


def _gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    _require_only(config, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=False)
    rope = _object(config, "rope_parameters")                       # transformers 5: one object for each kind of layer
    if rope.keys() - {"full_attention", "sliding_attention"}:
        raise _bad_config(f"rope_parameters is {rope!r:.120}, where one object is needed for each kind of layer")
    whole = {"rope_theta": config["rope_theta"]} | _object(rope, "full_attention") | _object(config, "rope_scaling")
    local = {"rope_theta": config["rope_local_base_freq"]} | _object(rope, "sliding_attention")
    if _scaling(local, config) is not None:
        raise _bad_config("RoPE scaling in the layers with a window is not supported")
    layers, types = config["num_hidden_layers"], config.get("layer_types")
    if types is None:
        windows = _gemma3_windows(config["sliding_window"], layers, config["sliding_window_pattern"])
    else:
        windows = _windows(_layer_types(types, len(_layer_range(layers))), config["sliding_window"])
    return _decoder(config) | windows | {
        "qk_norm": True, "rope_theta": whole["rope_theta"], "rope_scaling": _scaling(whole, config),
        "rope_local_theta": local["rope_theta"], "query_pre_attn_scalar": config["query_pre_attn_scalar"]}


def _gemma3_windows(window: int | None, layers: int, pattern: int) -> dict[str, Any]:
    """Of every `pattern` layers, the last one looks at everything, the others look back over the window."""
    pattern = _size("sliding_window_pattern", pattern)
    types = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in _layer_range(layers)]
    return _windows(types, window)


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    _require_only(config, activation_function="gelu_new", scale_attn_weights=True, add_cross_attention=False,
                  scale_attn_by_inverse_layer_idx=False)
    D, heads = config["n_embd"], config["n_head"]
    inner = config.get("n_inner")
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": D,
        "intermediate_size": 4 * _size("n_embd", D) if inner is None else inner,
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": _divide(D, heads),
        "max_position_embeddings": config["n_positions"],
        "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_theta": 10_000.0,                                     # unused: positions are learned
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "LlamaForCausalLM": _swish_decoder,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "GPT2LMHeadModel": _gpt2,
    "Gemma3ForCausalLM": _gemma3,
    "DeepseekV2ForCausalLM": lambda config: _deepseek(config, 2),
    "DeepseekV3ForCausalLM": lambda config: _deepseek(config, 3),
}

SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)

# What a field that a config.json leaves out means: the defaults of the configuration classes of transformers. Sizes
# without which no file was ever published have none here, so that a damaged file is not taken for a whole one.
_COMMON_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "tie_word_embeddings": False}
_QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_DEEPSEEK_DEFAULTS = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2ForCausalLM": _QWEN_DEFAULTS,
    "Qwen3ForCausalLM": _QWEN_DEFAULTS | {"head_dim": 128},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "MixtralForCausalLM": {"num_key_value_heads": 8, "sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
                           "num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {"num_key_value_heads": 4, "sliding_window": 4096, "decoder_sparse_step": 1,
                            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "GPT2LMHeadModel": {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "Gemma3ForCausalLM": {"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
                          "sliding_window": 4096, "sliding_window_pattern": 6, "rope_theta": 1e6,
                          "rope_local_base_freq": 10_000.0, "tie_word_embeddings": True},
    "DeepseekV2ForCausalLM": _DEEPSEEK_DEFAULTS | {
        "first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407,
        "routed_scaling_factor": 1.0, "topk_method": "greedy"},
    "DeepseekV3ForCausalLM": _DEEPSEEK_DEFAULTS | {
        "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "rope_interleave": True, "topk_method": "noaux_tc"},
}

_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
                       "gemma3": "Gemma3ForCausalLM"}


def _refuse_other_weights(config: Mapping[str, Any]) -> None:
    """Weights that mean something only together with their scales must not be taken for plain numbers."""
    for field in ("quantization_config", "compression_config"):
        quantization = config.get(field)
        if quantization is not None:
            method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
            raise ModelError("the model's weights are quantized",
                             f"{field} names the method {method!r:.80}, which this engine does not read",
                             "use the publisher's BF16 or FP16 weights, or a GGUF file of the model")


def _require_only(config: Mapping[str, Any], **settings: Any) -> None:
    """Refuse any of these settings that is there with another value than the one that the engine computes."""
    for name, only in settings.items():
        if config.get(name) is not None and config[name] != only:
            raise _bad_config(f"{name} is {config[name]!r:.80}; this engine computes "
                              + (f"{only!r} only" if only is not None else "without it"))


def _flag(config: Mapping[str, Any], name: str) -> bool:
    """A setting that is off when it is missing."""
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise _bad_config(f"{name} is {value!r:.80}, where true or false is needed")
    return value


def _count(config: Mapping[str, Any], name: str) -> int:
    """A number of things, of which there are none when it is missing."""
    value = config.get(name)
    return 0 if value is None or type(value) is int and value == 0 else _size(name, value)


def _size(name: str, value: Any) -> int:
    # The bound, which no model comes near, keeps products of sizes printable
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**40:
        raise _bad_config(f"{name} is {value!r:.80}, where a positive integer is needed")
    return value


def _layer_range(layers: Any) -> range:
    """The layers to describe one by one. A number in a file must not decide how much memory that takes."""
    if _size("num_hidden_layers", layers) > 100_000:
        raise _bad_config(f"num_hidden_layers is {layers}, and no model has so many")
    return range(layers)


def _require_sizes(config: Any, *names: str) -> None:
    for name in names:
        _size(name, getattr(config, name))


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        # Within float32's range, in which the engine computes with them.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-38 < value < 1e38:
            raise _bad_config(f"{name} is {value!r:.80}, where a positive number is needed")


def _divide(hidden_size: Any, heads: Any) -> int:
    if not isinstance(hidden_size, int) or not isinstance(heads, int) or heads < 1 or hidden_size % heads:
        raise _bad_config(f"a hidden size of {hidden_size!r:.80} does not divide into {heads!r:.80} heads")
    return hidden_size // heads


def _bad_config(why: str) -> ModelError:
    return ModelError("the model's configuration cannot be used", why,
                      "check config.json (or the GGUF metadata) against the model's publisher")


def _unsupported_architecture(name: Any) -> ModelError:
    return ModelError(f"the architecture {name!r:.80} is not supported",
                      "this engine runs " + ", ".join(SUPPORTED_ARCHITECTURES),
                      "use a model of one of these, or run this one with transformers")
