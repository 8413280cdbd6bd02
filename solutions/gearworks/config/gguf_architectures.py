"""How each architecture of GGUF files names a `ModelConfig`'s fields; what missing keys mean.

The defaults are llama.cpp's. One of its architectures may be several families: `llama` is
Llama, Mistral (with a window) and Mixtral (with experts), `deepseek2` is DeepSeek-V2 and V3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gearworks.config.architectures import ExpertsConfig, LatentConfig, gemma3_windows
from gearworks.config.fields import bad_config, divide, layer_range, not_computed, size
from gearworks.config.gguf_settings import heeded
from gearworks.config.rope import RopeScaling

GATES = {1: "softmax", 2: "sigmoid"}                # expert_gating_func


@dataclass(frozen=True)
class Keys:
    """The keys of one model, without its architecture in front, read with their types."""

    architecture: str
    settings: Mapping[str, Any]

    def read(self, key: str, kind: type, *default: Any) -> Any:
        """One setting, of a type. Raises ModelError for one that is missing, without a default,
        or of another type."""
        value = self.settings.get(key)
        if value is None:
            if not default:
                raise bad_config(f"the metadata key {self.name(key)} is missing")
            return default[0]
        if type(value) not in (kind, int):                # a whole number may stand for a float
            raise bad_config(f"the metadata key {self.name(key)} is a {type(value).__name__}, "
                             f"not a {kind.__name__}")
        return value

    def name(self, key: str) -> str:
        """A key as it stands in the file."""
        return f"{self.architecture}.{key}"


def gguf_fields(architecture: str, metadata: Mapping[str, Any],
                rope_factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The fields of a `ModelConfig` but `tie_word_embeddings`, from a GGUF file's metadata.

    architecture: GGUF's. rope_factors: what those of the file's tensors hold that
    `gguf_layouts.ROPE_FACTORS` names, a number for each pair. Raises ModelError for what is
    missing, impossible, or not computed.
    """
    keys = Keys(architecture, heeded(architecture, metadata))
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise bad_config("the metadata key tokenizer.ggml.tokens is missing, or no list of "
                         "strings")
    fields = {"vocab_size": len(tokens)} | _ARCHITECTURES[architecture](keys)
    if "rope_freqs.weight" in rope_factors and "rope_scaling" in fields:
        fields["rope_scaling"] = _by_factors(keys, fields, rope_factors["rope_freqs.weight"])
    if architecture == "phi3":
        fields["rope_scaling"] = _longrope(keys, fields, *(
            rope_factors.get(f"rope_factors_{texts}.weight") for texts in ("short", "long")))
    return fields


def _sizes(keys: Keys) -> dict[str, Any]:
    """What all architectures name in the same way."""
    heads = keys.read("attention.head_count", int)
    return {
        "hidden_size": keys.read("embedding_length", int),
        "intermediate_size": keys.read("feed_forward_length", int),
        "num_hidden_layers": keys.read("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.read("attention.head_count_kv", int, heads),
        "max_position_embeddings": keys.read("context_length", int)}


def _decoder(keys: Keys) -> dict[str, Any]:
    """Llama and all that are like it in this."""
    fields = _sizes(keys)
    head_dim = (keys.read("attention.key_length", int, 0)
                or divide(fields["hidden_size"], fields["num_attention_heads"]))
    if keys.read("attention.value_length", int, head_dim) != head_dim:
        raise not_computed("keys and values of different sizes are not supported", True)
    if (keys.read("rope.dimension_count", int, head_dim) != head_dim
            and keys.architecture != "phi3"):
        raise not_computed("RoPE over a part of each head is not supported", True)
    return fields | {"head_dim": head_dim} | _norms_and_rope(keys)


def _norms_and_rope(keys: Keys, mscale: float | None = None) -> dict[str, Any]:
    return {"rms_norm_eps": _short(keys.read("attention.layer_norm_rms_epsilon", float)),
            "rope_theta": keys.read("rope.freq_base", float, 10_000.0),
            "rope_scaling": _scaling(keys, mscale)}


def _short(number: float) -> float:
    """GGUF keeps the float32 nearest to the 1e-05 that was meant; six digits restore it."""
    return float(f"{number:.6g}")


def _scaling(keys: Keys, mscale: float | None) -> RopeScaling | None:
    """As llama.cpp: linear if no type is named, the old key only where the new one is missing,
    and a factor of 0 as 1. mscale: of YaRN, in Hugging Face's two fields of that name."""
    kind = keys.read("rope.scaling.type", str, "linear")
    factor = keys.read("rope.scaling.factor", float,
                       keys.read("rope.scale_linear", float, 1)) or 1
    context = keys.read("context_length", int)
    yarn = {"original_max_position_embeddings":
                keys.read("rope.scaling.original_context_length", int, None) or context,
            "beta_fast": keys.read("rope.scaling.yarn_beta_fast", float, None),
            "beta_slow": keys.read("rope.scaling.yarn_beta_slow", float, None),
            "mscale": mscale, "mscale_all_dim": mscale}
    ramp = keys.read("rope.scaling.yarn_ext_factor", float, -1.0)   # -1: as the type has it
    if kind not in ("none", "linear", "yarn"):
        raise not_computed(f"{keys.name('rope.scaling.type')} is {kind!r:.80}; from GGUF files "
                           "this engine computes 'none', 'linear' and 'yarn' only", True)
    if ramp not in (-1.0, 1.0 if kind == "yarn" else 0.0):
        raise not_computed(f"{keys.name('rope.scaling.yarn_ext_factor')} is {ramp!r:.80}, and "
                           f"the scaling is {kind!r}", True)
    if kind == "none" or kind == "linear" and factor == 1:
        return None
    return RopeScaling.from_hf({"type": kind, "factor": factor}
                               | (yarn if kind == "yarn" else {}), context)


def _by_factors(keys: Keys, fields: Mapping[str, Any],
                factors: Sequence[float]) -> RopeScaling:
    """RoPE whose pairs are slowed one by one, and all of them by what a linear scaling says."""
    scaling = fields.get("rope_scaling")
    if scaling is not None and scaling.kind != "linear" or "latent" in fields:
        raise not_computed("the file has factors for its RoPE in rope_freqs.weight, and "
                           f"{keys.name('rope.scaling.type')} besides", True)
    if len(factors) != fields["head_dim"] // 2:
        raise bad_config(f"rope_freqs.weight has {len(factors)} factors, and heads of "
                         f"{fields['head_dim']} have {fields['head_dim'] // 2} pairs")
    return RopeScaling.from_factors(factors, fields["max_position_embeddings"],
                                    1.0 if scaling is None else scaling.factor)


def _longrope(keys: Keys, fields: Mapping[str, Any], short: Sequence[float] | None,
              long: Sequence[float] | None) -> RopeScaling | None:
    """The factors of Phi-3's long contexts, which a file has in place of a type of scaling."""
    attention = keys.read("rope.scaling.attn_factor", float, None)
    if short is None and long is None and attention in (None, 1.0):
        return fields["rope_scaling"]
    context = keys.read("context_length", int)
    return RopeScaling.from_hf({
        "type": "longrope", "short_factor": short, "long_factor": long,
        "original_max_position_embeddings": keys.read("rope.scaling.original_context_length",
                                                      int),
        "attention_factor": attention}, context)


def _require_no_window(keys: Keys, context: int) -> None:
    window = keys.read("attention.sliding_window", int, 0)
    if window and window < context:
        raise not_computed(f"{keys.name('attention.sliding_window')} is {window}, and which "
                           "layers have it is not said in such a file", True)


def _experts(keys: Keys, layers: int, expert_size: int, **more: Any) -> ExpertsConfig:
    """Experts in all layers, or in those that `sparse_layers` says."""
    more = {"sparse_layers": (True,) * len(layer_range(layers))} | more
    return ExpertsConfig(keys.read("expert_count", int), keys.read("expert_used_count", int),
                         expert_size, **more)


def _llama(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    layers, window = fields["num_hidden_layers"], keys.read("attention.sliding_window", int, 0)
    experts, used = keys.read("expert_count", int, 0), keys.read("expert_used_count", int, 0)
    fields["architecture"] = "LlamaForCausalLM"
    if window and window < fields["max_position_embeddings"]:
        fields |= {"architecture": "MistralForCausalLM",
                   "windows": (window,) * len(layer_range(layers))}
    if experts or used:
        fields |= {"architecture": "MixtralForCausalLM",
                   "experts": _experts(keys, layers, fields["intermediate_size"],
                                       normalize=True)}
    return fields


def _qwen2(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    _require_no_window(keys, fields["max_position_embeddings"])
    return fields | {"architecture": "Qwen2ForCausalLM", "qkv_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    _require_no_window(keys, fields["max_position_embeddings"])
    return fields | {"architecture": "Qwen3ForCausalLM", "qk_norm": True}


def _olmo2(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    _require_no_window(keys, fields["max_position_embeddings"])
    return fields | {"architecture": "Olmo2ForCausalLM"}


def _phi3(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    window = keys.read("attention.sliding_window", int, 0)
    turning = keys.read("rope.dimension_count", int, fields["head_dim"])
    windows = (window,) * len(layer_range(fields["num_hidden_layers"])) if window else ()
    return fields | {"architecture": "Phi3ForCausalLM", "windows": windows,
                     "rotary_dim": None if turning == fields["head_dim"] else turning}


def _smollm3(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    _require_no_window(keys, fields["max_position_embeddings"])
    turns = tuple((layer + 1) % 4 != 0 for layer in layer_range(fields["num_hidden_layers"]))
    return fields | {"architecture": "SmolLM3ForCausalLM",   # which layers, the file leaves out
                     "rope_layers": () if all(turns) else turns}


def _qwen3_moe(keys: Keys) -> dict[str, Any]:
    fields = _qwen3(keys)
    # all published models of this family normalize, and llama.cpp does
    experts = _experts(keys, fields["num_hidden_layers"],
                       keys.read("expert_feed_forward_length", int),
                       normalize=keys.read("expert_weights_norm", bool, True))
    return fields | {"architecture": "Qwen3MoeForCausalLM", "experts": experts}


def _gpt_oss(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    layers, window = fields["num_hidden_layers"], keys.read("attention.sliding_window", int)
    scaling = fields["rope_scaling"]
    if scaling is not None:             # as these models were trained; the file does not say so
        fields["rope_scaling"] = replace(scaling, truncate=False)
    experts = _experts(keys, layers, keys.read("expert_feed_forward_length", int),
                       normalize=True, swiglu_alpha=1.702, swiglu_limit=7.0)
    return fields | gemma3_windows(window, layers, 2) | {
        "architecture": "GptOssForCausalLM", "qkv_bias": True, "o_bias": True,
        "experts": experts, "intermediate_size": experts.intermediate_size}


def _gemma2(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    return (fields | gemma3_windows(keys.read("attention.sliding_window", int, 4096),
                                    fields["num_hidden_layers"], 2)
            | {"architecture": "Gemma2ForCausalLM",
               "query_pre_attn_scalar": _scalar(fields, 46),
               "attention_softcap": keys.read("attn_logit_softcapping", float, 50.0),
               "logit_softcap": keys.read("final_logit_softcapping", float, 30.0)})


def _scalar(fields: Mapping[str, Any], most_layers: int) -> int:
    """What scales Gemma's scores, which the file leaves to its reader: d in all sizes but the
    largest, which has so many layers."""
    return (divide(fields["hidden_size"], fields["num_attention_heads"])
            if fields["num_hidden_layers"] == most_layers else fields["head_dim"])


def _gemma3(keys: Keys) -> dict[str, Any]:
    fields = _decoder(keys)
    layers = fields["num_hidden_layers"]
    return (fields | gemma3_windows(keys.read("attention.sliding_window", int, 0), layers, 6)
            | {"architecture": "Gemma3ForCausalLM", "qk_norm": True,
               "query_pre_attn_scalar": _scalar(fields, 62),
               "rope_local_theta": keys.read("rope.freq_base_swa", float, 10_000.0)})


def _gpt2(keys: Keys) -> dict[str, Any]:
    fields = _sizes(keys)
    if fields["num_key_value_heads"] != fields["num_attention_heads"]:
        raise not_computed(f"{keys.name('attention.head_count_kv')} is "
                           f"{fields['num_key_value_heads']}, and there are "
                           f"{fields['num_attention_heads']} heads", True)
    return fields | {
        "architecture": "GPT2LMHeadModel",
        "head_dim": divide(fields["hidden_size"], fields["num_attention_heads"]),
        "rms_norm_eps": _short(keys.read("attention.layer_norm_epsilon", float)),
        "rope_theta": 10_000.0}                              # unused: positions are learned


def _deepseek(keys: Keys) -> dict[str, Any]:
    """DeepSeek-V2, whose router is a softmax, and V3, whose router is a sigmoid."""
    sizes = _sizes(keys)
    heads, layers = sizes["num_attention_heads"], sizes["num_hidden_layers"]
    if sizes["num_key_value_heads"] not in (1, heads):
        raise bad_config(f"{keys.name('attention.head_count_kv')} is "
                         f"{sizes['num_key_value_heads']}, and all of {heads} heads share one "
                         "latent, or make their own keys from it")
    turning = size(keys.name("rope.dimension_count"), keys.read("rope.dimension_count", int))
    rank = keys.read("attention.kv_lora_rank", int)
    lengths = [keys.read(f"attention.{part}_length", int) for part in ("key", "value")]
    own = [keys.read(f"attention.{part}_length_mla", int, None) for part in ("key", "value")]
    if own != [None, None]:                 # then the two others say what the cache holds
        if lengths != [rank + turning, rank] or None in own:
            raise bad_config(f"the cache's vectors have {lengths[0]} and {lengths[1]} numbers "
                             f"by their keys, and {rank + turning} and {rank} by the ranks")
        lengths = own
    latent = LatentConfig(keys.read("attention.q_lora_rank", int, None) or None, rank,
                          lengths[0] - turning, turning, lengths[1])
    gate = keys.read("expert_gating_func", int, 0) or 1
    if gate not in GATES:
        raise not_computed(f"{keys.name('expert_gating_func')} is {gate!r:.80}; this engine "
                           "computes 1 (softmax) and 2 (sigmoid) only", True)
    normalize = keys.read("expert_weights_norm", bool, False)
    if normalize and GATES[gate] == "softmax":
        raise not_computed(f"{keys.name('expert_weights_norm')} is true, and in DeepSeek-V2 "
                           "nothing is normalized", True)
    expert_size = size(keys.name("expert_feed_forward_length"),
                       keys.read("expert_feed_forward_length", int))
    dense = keys.read("leading_dense_block_count", int, 0)
    groups = keys.read("expert_group_count", int, 0) or 1
    experts = _experts(
        keys, layers, expert_size, normalize=normalize, scoring=GATES[gate],
        sparse_layers=tuple(layer >= dense for layer in layer_range(layers)),
        groups=groups, kept_groups=keys.read("expert_group_used_count", int, 0) or groups,
        best_of_group=gate, scale=_short(keys.read("expert_weights_scale", float, 0.0)) or 1.0,
        shared_size=keys.read("expert_shared_count", int, 0) * expert_size)
    # the file keeps a tenth of mscale_all_dim, and takes mscale to be the same
    mscale = _short(10 * keys.read("rope.scaling.yarn_log_multiplier", float, 0.0))
    return sizes | _norms_and_rope(keys, mscale) | {
        "architecture": f"DeepseekV{gate + 1}ForCausalLM", "num_key_value_heads": heads,
        "head_dim": turning, "latent": latent, "experts": experts, "rope_interleaved": True}


_ARCHITECTURES: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3,
    "olmo2": _olmo2, "phi3": _phi3, "smollm3": _smollm3,
    "gpt-oss": _gpt_oss, "gemma2": _gemma2,
    "qwen3moe": _qwen3_moe, "gpt2": _gpt2, "deepseek2": _deepseek}

GGUF_ARCHITECTURES = tuple(_ARCHITECTURES)
