"""What becomes of each setting of a model's JSON files: read, computed in one way, or left out.

A setting that is ignored silently is the worst of errors: the model still speaks, and slightly
wrongly. So every setting that the configuration classes of transformers know for our
architectures stands in one of the tables here, and `heeded` gives their readers nothing else.

Files hold more than that: what a trainer noted, what another family would compute. A setting in
no table is left alone where transformers would only store it too, and it does not sound like a
part of the computation; where it does (`COMPUTING`), and says anything, the file is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from gearworks.config.fields import bad_config, not_computed, says_nothing

_DECODER = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rms_norm_eps", "tie_word_embeddings", "rope_parameters", "rope_scaling", "rope_theta",
    "original_max_position_embeddings"}
_ONE_WINDOW = {"sliding_window", "layer_types"}
_QWEN_WINDOWS = _ONE_WINDOW | {"use_sliding_window", "max_window_layers"}
_DEEPSEEK = _DECODER | {
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "first_k_dense_replace", "n_routed_experts", "n_shared_experts", "moe_intermediate_size",
    "num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group", "topk_method"}

# What the reader of each architecture gets to see.
READ: Mapping[str, frozenset[str]] = {name: frozenset(settings) for name, settings in {
    "LlamaForCausalLM": _DECODER | {"attention_bias"},
    "Qwen2ForCausalLM": _DECODER | _QWEN_WINDOWS,
    "Qwen3ForCausalLM": _DECODER | _QWEN_WINDOWS | {"attention_bias"},
    "MistralForCausalLM": _DECODER | _ONE_WINDOW,
    "MixtralForCausalLM": _DECODER | _ONE_WINDOW | {"num_local_experts", "num_experts_per_tok"},
    "GptOssForCausalLM": _DECODER | _ONE_WINDOW | {
        "num_local_experts", "num_experts_per_tok", "swiglu_alpha", "swiglu_limit",
        "attention_bias"},
    "Qwen3MoeForCausalLM": _DECODER | _ONE_WINDOW | {
        "use_sliding_window", "decoder_sparse_step", "mlp_only_layers", "num_experts",
        "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"},
    "Olmo2ForCausalLM": _DECODER,
    "Phi3ForCausalLM": _DECODER | {"sliding_window", "partial_rotary_factor"},
    "SmolLM3ForCausalLM": _DECODER | _ONE_WINDOW | {
        "use_sliding_window", "no_rope_layers", "no_rope_layer_interval", "attention_bias"},
    "GPT2LMHeadModel": {
        "vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions",
        "layer_norm_epsilon", "tie_word_embeddings"},
    "Gemma2ForCausalLM": _DECODER | _ONE_WINDOW | {
        "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"},
    "Gemma3ForCausalLM": _DECODER - {"original_max_position_embeddings"} | _ONE_WINDOW | {
        "sliding_window_pattern", "rope_local_base_freq", "query_pre_attn_scalar"},
    "DeepseekV2ForCausalLM": _DEEPSEEK - {"head_dim"},
    "DeepseekV3ForCausalLM": _DEEPSEEK | {
        "norm_topk_prob", "rope_interleave", "num_nextn_predict_layers"},
}.items()}

# Other names of the same settings, as transformers maps them.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "MixtralForCausalLM": {"num_experts": "num_local_experts"},
    "GptOssForCausalLM": {"num_experts": "num_local_experts"},
    "Qwen3MoeForCausalLM": {"num_local_experts": "num_experts"},
    "GPT2LMHeadModel": {"hidden_size": "n_embd", "max_position_embeddings": "n_positions",
                        "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    "DeepseekV2ForCausalLM": {"num_experts": "n_routed_experts"},
    "DeepseekV3ForCausalLM": {"num_local_experts": "n_routed_experts",
                              "num_mtp_layers": "num_nextn_predict_layers"},
}

SILU = ("silu", "swish")
GELU_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")

# The values with which a setting says what is computed here anyway; any other is refused.
COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": SILU, "attention_bias": (False,), "mlp_bias": (False,), "is_causal": (True,),
    "is_encoder_decoder": (False,), "add_cross_attention": (False,),
    "cross_attention_hidden_size": (), "pruned_heads": ({},), "per_layer_config": (),
    "partial_rotary_factor": (1.0,), "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
}
COMPUTED_BY_FAMILY: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "GPT2LMHeadModel": {"activation_function": GELU_TANH, "scale_attn_weights": (True,),
                        "scale_attn_by_inverse_layer_idx": (False,)},
    **{name: {"hidden_activation": GELU_TANH, "hidden_act": GELU_TANH,
              "use_bidirectional_attention": (False,)}
       for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM")},
    # DeepSeek's own code heeds norm_topk_prob in version 2, that of transformers does not
    "DeepseekV2ForCausalLM": {"moe_layer_freq": (1,), "scoring_func": ("softmax",),
                              "norm_topk_prob": (False,), "rope_interleave": (True,)},
    "DeepseekV3ForCausalLM": {"moe_layer_freq": (1,), "scoring_func": ("sigmoid",)},
}

# What changes no logits, and why.
LEFT_OUT: Mapping[str, frozenset[str]] = {reason: frozenset(settings) for reason, settings in {
    "it says what the file is": {
        "architectures", "model_type", "transformers_version", "_name_or_path", "name_or_path",
        "_commit_hash", "auto_map", "tokenizer_class"},
    "it belongs to training": {
        "initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop",
        "router_aux_loss_coef", "router_jitter_noise", "pretraining_tp", "aux_loss_alpha",
        "seq_aux", "gradient_checkpointing"},
    "it is about where numbers are kept, how exactly, and how fast": {
        "dtype", "torch_dtype", "use_cache", "cache_implementation", "chunk_size_feed_forward",
        "reorder_and_upcast_attn", "ep_size", "_attn_implementation", "attn_implementation",
        "_attn_implementation_autoset", "_attn_implementation_internal", "use_flash_attn",
        "_flash_attn_2_enabled", "use_flash_attention", "use_flash_attention_2",
        "experts_implementation", "_experts_implementation_internal"},
    "it is about what a call of transformers gives back": {
        "return_dict", "output_hidden_states", "output_attentions", "output_router_logits",
        "num_logits_to_keep", "tie_last_hidden_states"},
    "it belongs to other tasks than continuing a text": {
        "id2label", "label2id", "num_labels", "problem_type", "summary_type",
        "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout", "task_specific_params", "is_decoder"},
    "`LanguageModel` and the tokenizer's files say which tokens begin and end a text": {
        "bos_token_id", "eos_token_id", "pad_token_id"},
    "it counts layers that guess ahead, whose weights are refused where none are read": {
        "num_nextn_predict_layers"},
    "it counts layers, and says nothing of them where no setting of windows is read": {
        "max_window_layers"},
    "generation_config.json has the say": {
        "guidance_scale", "encoder_repetition_penalty", "renormalize_logits"},
}.items()}
# Settings of one family that others of its settings decide, or that transformers overwrites.
DECIDED_BY_OTHERS: Mapping[str, frozenset[str]] = {
    "GPT2LMHeadModel": frozenset({"n_ctx"}),                              # n_positions
    "GptOssForCausalLM": frozenset({"experts_per_token"}),                # num_experts_per_tok
    "Gemma3ForCausalLM": frozenset({"_sliding_window_pattern"}),          # layer_types
    "DeepseekV2ForCausalLM": frozenset({"head_dim", "qk_head_dim"}),      # qk_rope_head_dim
    "DeepseekV3ForCausalLM": frozenset({"qk_head_dim"}),
}

# Words of names that sound like a part of the computation, and words of training, which do not.
COMPUTING = frozenset("""
    act activation afn alibi altup attention attn bias bidirectional causal clamp clip conv
    depth dense embed embedding embeddings emb eps expert experts ff ffn gate gated gating
    gelu hc head heads indexer kda laurel layer layernorm layers linear logit logits lora lru
    mamba mixer mlp moe mtp multiplier multipliers mup ngpt norm parallel pos position
    positions prenorm qk qkv recurrent rel relative rescale residual rms rope rotary router
    scale scaling scoring shared sink sinusoidal sliding softcap softcapping softmax sparse
    ssm swa swiglu theta topk window
    """.split())
TRAINING = frozenset("""
    aux dropout droppath init initializer jitter layerdrop loss pdrop
    """.split())


def heeded(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a `config.json` that this architecture's reader knows, by their names.

    Raises ModelError, naming the setting and its value, for one that would change what is
    computed, and that the engine does not compute.

    >>> heeded("GPT2LMHeadModel", {"n_embd": 768, "torch_dtype": "float32", "my_note": "x"})
    {'n_embd': 768}
    """
    aliases, read = ALIASES.get(architecture, {}), READ[architecture]
    computed = COMPUTED | COMPUTED_BY_FAMILY.get(architecture, {})
    left_out = DECIDED_BY_OTHERS.get(architecture, frozenset()).union(*LEFT_OUT.values())
    settings: dict[str, Any] = {}
    for given, value in config.items():
        name = aliases.get(given, given)
        if name in read and (value is not None or name == given):
            if name in settings and settings[name] != value:
                raise bad_config(f"{given} is {value!r:.80}, and another name of the same "
                                 f"setting says {settings[name]!r:.80}")
            settings[name] = value
        elif name in computed:
            if value is not None and value not in computed[name]:
                only = " or ".join(map(repr, computed[name]))
                raise not_computed(f"{name} is {value!r:.80}; this engine computes "
                                   + (f"{only} only" if only else "without it"))
        elif name not in left_out and not says_nothing(value) and sounds_computed(name):
            raise not_computed(f"{name[:80]} is {value!r:.80}, and this engine does not know "
                               f"that setting in a model of the architecture {architecture}")
    return settings


def sounds_computed(name: str) -> bool:
    """Whether a setting that no table knows may change what a model computes, by its name.

    >>> [*map(sounds_computed, ("residual_multiplier", "attn_dropout", "wandb_run"))]
    [True, False, False]
    """
    words = set(re.split("[^a-z]+", name.lower()))
    return bool(words & COMPUTING) and not words & TRAINING


# --- RoPE: the settings of one object, `rope_parameters` or `rope_scaling`

ROPE_READ = frozenset({
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor",
    "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor"})
ROPE_COMPUTED: Mapping[str, tuple[Any, ...]] = {"partial_rotary_factor": (1.0,)}
ROPE_LEFT_OUT = frozenset({"finetuned"})                 # the model was trained with it


def heeded_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a RoPE that its reader knows; any other is refused if it says anything.

    >>> heeded_rope({"type": "linear", "factor": 4.0, "finetuned": True, "mrope_section": []})
    {'type': 'linear', 'factor': 4.0}
    """
    for name, value in parameters.items():
        if (name not in ROPE_READ | ROPE_LEFT_OUT and not says_nothing(value)
                and value not in ROPE_COMPUTED.get(name, ())):
            raise not_computed(f"{name[:80]} of the RoPE is {value!r:.80}, and this engine "
                               "computes without it")
    return {name: value for name, value in parameters.items() if name in ROPE_READ}


# --- generation_config.json, of which `LanguageModel` reads the ids that end a text

GENERATION_READ = frozenset({"eos_token_id"})
# These would change the answer to every request. None is heeded, so none may say anything.
GENERATION_REFUSED = frozenset({
    "stop_strings", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
    "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "watermarking_config",
    "force_words_ids", "constraints"})
GENERATION_LEFT_OUT: Mapping[str, frozenset[str]] = {
    reason: frozenset(settings) for reason, settings in {
        "each request says how tokens are chosen": {
            "do_sample", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
            "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
            "repetition_penalty", "encoder_repetition_penalty", "length_penalty",
            "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "renormalize_logits",
            "remove_invalid_values", "exponential_decay_length_penalty", "guidance_scale",
            "penalty_alpha", "dola_layers", "low_memory", "token_healing", "early_stopping"},
        "each request says how many tokens, and how many answers": {
            "max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time",
            "num_return_sequences"},
        "it is about how fast tokens come": {
            "use_cache", "cache_implementation", "cache_config", "max_cache_len",
            "prefill_chunk_size", "compile_config", "disable_compile", "use_mtp",
            "continuous_batching_config", "is_assistant", "num_assistant_tokens",
            "num_assistant_tokens_schedule", "assistant_confidence_threshold",
            "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
            "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight",
            "speculation_type"},
        "it is about what a call of transformers gives back": {
            "output_attentions", "output_hidden_states", "output_scores", "output_logits",
            "return_dict_in_generate"},
        "the tokenizer's files say it": {"bos_token_id", "pad_token_id"},
        "it belongs to encoder-decoder models": {"decoder_start_token_id"},
        "it says what the file is": {"transformers_version", "_from_model_config"},
    }.items()}
