"""What becomes of each key of a GGUF file's metadata: read, computed in one way, or left out.

Keys of the model itself begin with its architecture, as in `llama.block_count`. What programs
do with them is not written down anywhere but in llama.cpp, and new ones come with every family.
So a key of the model, or of its tokenizer, that stands in no table here is refused by its name
and value, unless its value says nothing: zero, false or empty. Keys under other names are notes
of the programs that made the file, and no reader computes with them.

Source: gguf-py/gguf/constants.py, and `load_hparams` in src/llama-model.cpp of llama.cpp.
"""

from collections.abc import Mapping
from typing import Any

from gearworks.config.fields import not_computed, says_nothing

_SIZES = {"context_length", "embedding_length", "block_count", "feed_forward_length",
          "attention.head_count", "attention.head_count_kv"}
_DECODER = _SIZES | {
    "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scale_linear", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor"}
_WINDOW = {"attention.sliding_window"}
_EXPERTS = {"expert_count", "expert_used_count"}

# What the reader of each architecture gets to see, without the architecture in front.
READ: Mapping[str, frozenset[str]] = {name: frozenset(keys) for name, keys in {
    "llama": _DECODER | _WINDOW | _EXPERTS,
    "qwen2": _DECODER | _WINDOW,
    "qwen3": _DECODER | _WINDOW,
    "gpt-oss": _DECODER | _WINDOW | _EXPERTS | {"expert_feed_forward_length"},
    "olmo2": _DECODER | _WINDOW,
    "phi3": _DECODER | _WINDOW | {"rope.scaling.attn_factor"},
    "smollm3": _DECODER | _WINDOW,
    "qwen3moe": _DECODER | _WINDOW | _EXPERTS | {
        "expert_feed_forward_length", "expert_weights_norm"},
    "gemma2": _DECODER | _WINDOW | {"attn_logit_softcapping", "final_logit_softcapping"},
    "gemma3": _DECODER | _WINDOW | {"rope.freq_base_swa"},
    "gpt2": _SIZES | {"attention.layer_norm_epsilon"},
    "deepseek2": _DECODER | _EXPERTS | {
        "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
        "attention.value_length_mla", "leading_dense_block_count", "expert_shared_count",
        "expert_feed_forward_length", "expert_weights_scale", "expert_weights_norm",
        "expert_gating_func", "expert_group_count", "expert_group_used_count",
        "rope.scaling.yarn_log_multiplier"},
}.items()}

# The values with which a key says what is computed here anyway. A scale of 0 is none, as in
# llama.cpp.
COMPUTED: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "logit_scale": (0.0, 1.0), "residual_scale": (0.0, 1.0), "embedding_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,), "rope.scaling.yarn_attn_factor": (1.0,),
}
COMPUTED_BY_FAMILY: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "gemma3": {"attention.sliding_window_pattern": (6,)},
    # which gate makes the experts' weights: 1 is the softmax
    "llama": {"expert_gating_func": (0, 1)}, "qwen3moe": {"expert_gating_func": (0, 1)}}

# What changes no logits, and why.
LEFT_OUT: Mapping[str, frozenset[str]] = {reason: frozenset(keys) for reason, keys in {
    "the list of tokens says it": {"vocab_size"},
    "it says how the file was made": {"tensor_data_layout", "rope.scaling.finetuned"},
    "it belongs to other tasks than continuing a text": {
        "pooling_type", "classifier.output_labels", "decoder_start_token_id"},
}.items()}

TOKENIZER_READ = frozenset(f"tokenizer.{key}" for key in (
    "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges",
    "ggml.bos_token_id", "ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id",
    "ggml.unknown_token_id", "ggml.padding_token_id", "ggml.add_bos_token",
    "ggml.add_eos_token", "ggml.add_space_prefix", "ggml.scores", "ggml.precompiled_charsmap",
    "ggml.remove_extra_whitespaces", "chat_template"))
TOKENIZER_LEFT_OUT: Mapping[str, frozenset[str]] = {
    reason: frozenset(f"tokenizer.{key}" for key in keys) for reason, keys in {
        "no token of a continued text has another type than the first": {
            "ggml.token_type_count"},
        "it names a token that only the writer of a prompt places": {
            "ggml.seperator_token_id", "ggml.mask_token_id", "ggml.cls_token_id",
            "ggml.fim_pre_token_id", "ggml.fim_suf_token_id", "ggml.fim_mid_token_id",
            "ggml.fim_pad_token_id", "ggml.fim_rep_token_id", "ggml.fim_sep_token_id",
            "ggml.prefix_token_id", "ggml.suffix_token_id", "ggml.middle_token_id"},
        "it is a second description of the same vocabulary": {"huggingface.json"},
        "it lists or holds templates besides the one that is used": {"chat_templates"},
    }.items()}


def heeded(architecture: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the reader of an architecture knows, without the architecture in front.

    Raises ModelError, naming the key and its value, for one of the model or of its tokenizer
    that would change what is computed, and that the engine does not compute.

    >>> heeded("qwen2", {"qwen2.block_count": 24, "qwen2.logit_scale": 0.0, "general.name": ""})
    {'block_count': 24}
    """
    kind = metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise not_computed(f"general.type is {kind!r:.80}, and a file of that kind is no "
                           "language model of its own", True)
    computed = COMPUTED | COMPUTED_BY_FAMILY.get(architecture, {})
    left_out = frozenset().union(*LEFT_OUT.values())
    tokenizer = TOKENIZER_READ.union(*TOKENIZER_LEFT_OUT.values())
    settings = {}
    for key, value in metadata.items():
        of_model = key.startswith(f"{architecture}.")
        name = key.removeprefix(f"{architecture}.") if of_model else key
        if of_model and name in READ[architecture]:
            settings[name] = value
        elif of_model and name in computed:
            if not isinstance(value, (int, float)) or value not in computed[name]:
                raise not_computed(f"{key} is {value!r:.80}; this engine computes "
                                   + " or ".join(map(repr, computed[name])) + " only", True)
        elif of_model and name not in left_out or (
                key.startswith("tokenizer.") and key not in tokenizer
                and not key.startswith("tokenizer.chat_template.")):
            if not says_nothing(value):
                raise not_computed(f"{key[:80]} is {value!r:.80}, and this engine computes "
                                   "without it", True)
    return settings
