"""Every setting of a model's files is decided, by the lists of the package that writes them.

Takes about 10 s.
"""

import dataclasses
import doctest
import inspect
import re
from typing import get_type_hints

import numpy as np
import pytest
import torch
import transformers
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from gearworks.config import architectures, fields, gguf_settings, settings
from gearworks.config import SUPPORTED_ARCHITECTURES, ModelConfig
from gearworks.config.rope import RopeScaling
from gearworks.config.settings import heeded, heeded_rope
from gearworks.errors import ModelError
from gearworks.layers import gelu, silu
from gearworks.rope_scaling import scaled_frequencies

SIZES = {"vocab_size": 99, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 4,
         "max_position_embeddings": 256}
GPT2_SIZES = {"vocab_size": 99, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}


def config_class(architecture):
    family = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    family = "Gemma3Text" if family == "Gemma3" else family
    return getattr(transformers, f"{family}Config")


def file_of(architecture, **more):
    sizes = GPT2_SIZES if architecture == "GPT2LMHeadModel" else SIZES
    experts = {"num_experts_per_tok": 2} if "Deepseek" in architecture else {}
    return {"architectures": [architecture]} | sizes | experts | more


def decided(architecture):
    """Every name on which there is a decision, for this architecture."""
    of_family = (settings.READ, settings.ALIASES,
                 settings.COMPUTED_BY_FAMILY, settings.DECIDED_BY_OTHERS)
    return {"quantization_config", *settings.COMPUTED}.union(
        *settings.LEFT_OUT.values(),
        *(table.get(architecture, ()) for table in of_family))


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_every_setting_that_transformers_knows_is_decided(architecture):
    """Attributes of the configuration class and its base, and what the model's code reads."""
    kind = config_class(architecture)
    fields = (field.name for field in dataclasses.fields(kind))
    names = {*kind().to_dict(), *fields, *kind.attribute_map}
    assert {"dtype", "is_encoder_decoder", "vocab_size"} <= names and len(names) > 30
    assert names - decided(architecture) == set()
    code = inspect.getsource(inspect.getmodule(getattr(transformers, architecture)))
    of_other_heads = {"get_text_config", "classifier_dropout", "hidden_dropout",
                      "summary_last_dropout", "image_token_id", "mm_tokens_per_image",
                      "text_config", "vision_config"}
    read = {*re.findall(r"config\.(\w+)", code),
            *re.findall(r"getattr\(config, \"(\w+)\"", code)}
    assert "vocab_size" in read
    assert read - of_other_heads - decided(architecture) == set()


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_other_names_of_a_setting_are_those_of_transformers(architecture):
    ours = settings.ALIASES.get(architecture, {})
    theirs = config_class(architecture).attribute_map
    assert set(map(frozenset, ours.items())) == set(map(frozenset, theirs.items()))
    for other, name in ours.items():
        sizes = file_of(architecture)
        value = sizes.pop(name, 16)
        expected = ModelConfig.from_hf(sizes | {name: value})
        assert ModelConfig.from_hf(sizes | {other: value}) == expected
        assert ModelConfig.from_hf(sizes | {other: value, name: value}) == expected
        with pytest.raises(ModelError, match="another name of the same"):
            ModelConfig.from_hf(sizes | {other: value, name: value + 16})


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


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_settings_that_are_said_to_be_read_are_read(architecture, monkeypatch):
    read, watched = architectures._FAMILIES[architecture], []
    monkeypatch.setitem(architectures._FAMILIES, architecture,
                        lambda config: read(watched.append(Watched(config)) or watched[-1]))
    known = settings.READ[architecture]
    for more in ({}, {"layer_types": ["full_attention"] * 3}, {"use_sliding_window": True},
                 {"n_group": 2, "topk_group": 1}):
        more = {name: value for name, value in more.items() if name in known}
        if more and architecture.startswith(("Mistral", "Mixtral", "Qwen3Moe")):
            more |= {"sliding_window": None} if "layer_types" in more else {"sliding_window": 9}
        if "n_group" in more and architecture == "DeepseekV2ForCausalLM":
            more |= {"topk_method": "group_limited_greedy"}
        ModelConfig.from_hf(file_of(architecture, **more))
    asked = set().union(*(config.asked for config in watched))
    if architecture == "DeepseekV2ForCausalLM":
        asked -= {"head_dim"}               # asked for as in all families, and never there
    assert asked == known


@pytest.mark.parametrize("ours, names", [
    (silu, settings.SILU), (gelu, settings.GELU_TANH)])
def test_the_names_of_an_activation_are_all_that_mean_it(ours, names):
    x = torch.linspace(-9, 9, 1001)
    same = set()
    for name in ACT2FN:
        try:
            y = ACT2FN[name](x).detach().numpy()
        except Exception:                                   # made for shapes of its own
            continue
        if np.abs(y - ours(x.numpy().copy())).max() < 2e-6:
            same.add(name)
    assert same == set(names)


def test_swish_is_silu():
    swish, silu = (ModelConfig.from_hf(file_of("LlamaForCausalLM", hidden_act=name))
                   for name in ("swish", "silu"))
    assert swish == silu


# What people's folders hold besides, of every kind that was met.
HARMLESS = {
    "_name_or_path": "x/y", "torch_dtype": "bfloat16", "auto_map": {"AutoModel":
    "modeling.X"}, "use_cache": False, "transformers_version": "4.31.0",
    "transformers.js_config": {"dtype": "q4"}, "is_llama_config": True, "unsloth_version":
    "1", "rope_interleaved": False, "use_mrope": False, "max_sequence_length": 2048,
    "_attn_implementation_autoset": True, "attention_dropout": 0.1,
    "attention_probs_dropout_prob": 0.1, "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size":
    1, "training_tokens": 10**12, "global_step": 5000, "wandb": {"run": "a"}, "git_hash":
    "ab12", "seed": 3, "temperature": 0.6, "max_length": 4096, "logit_scale": None,
    "no_rope_layers": [], "use_qk_norm": False, "final_logit_softcapping": None, "id2label":
    {"0": "A"}, "pretraining_tp": 2, "initializer_range": 0.02, "chunk_size_feed_forward": 8,
    "block_size": 1024, "torchscript": False, "max_window_layers": 28, "use_sliding_window":
    False, "prefix": "x", "task_specific_params": {"text-generation": {"do_sample": True}},
}
# What other decoders compute with.
DANGEROUS = {
    "logit_scale": 0.0625, "logits_scaling": 8.0, "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22, "attention_multiplier": 0.015, "clip_qkv": 8.0,
    "use_qk_norm": True, "qk_layernorm": True, "no_rope_layers": [1, 0],
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "partial_rotary_factor":
    0.5, "rotary_pct": 0.25, "rotary_dim": 32, "rope_interleaved": True,
    "attention_chunk_size": 8192, "attn_temperature_tuning": True, "alibi": True,
    "use_parallel_residual": True, "parallel_attn": True, "scale_emb": 12, "scale_depth": 1.4,
    "swiglu_limit": 7.0, "attention_sink": True, "layer_types": ["full_attention"] * 3,
    "use_bidirectional_attention": True, "hidden_activation": "gelu", "lm_head_bias": True,
    "norm_type": "layer", "layer_norm_epsilon": 1e-5, "kv_lora_rank": 512,
    "num_local_experts": 8, "moe_intermediate_size": 64, "ssm_state_size": 16, "mup_enabled":
    True, "altup_num_inputs": 4, "position_embedding_type": "alibi", "is_causal": False,
    "is_encoder_decoder": True, "add_cross_attention": True, "pruned_heads": {"0": [1]},
    "per_layer_config": {"0": {"hidden_size": 9}}, "dual_chunk_attention_config":
    {"chunk_size": 9},
}


def test_notes_of_others_hinder_nothing():
    config = file_of("LlamaForCausalLM")
    assert ModelConfig.from_hf(config | HARMLESS) == ModelConfig.from_hf(config)


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_another_decoder_computes_is_refused_by_name_and_value(name):
    with pytest.raises(ModelError) as error:
        ModelConfig.from_hf(file_of("LlamaForCausalLM", **{name: DANGEROUS[name]}))
    assert f"{name} is {DANGEROUS[name]!r:.80}" in error.value.why
    assert "config.json" in error.value.hint


def test_every_setting_of_a_rope_is_decided():
    known = settings.ROPE_READ | settings.ROPE_LEFT_OUT
    for name in get_type_hints(RopeParameters):
        if name not in known:
            with pytest.raises(ModelError, match=f"{name} of the RoPE is"):
                heeded_rope({name: 0.37})
    nothing = {"partial_rotary_factor": 1.0, "mrope_section": []}
    assert heeded_rope(nothing | {"rope_theta": 3}) == {"rope_theta": 3}
    scaling = {"type": "linear", "factor": 2.0, "attn_factor": 1.5}
    config = file_of("LlamaForCausalLM", rope_scaling=scaling)
    with pytest.raises(ModelError, match="attn_factor of the RoPE is 1.5"):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize("said", [
    {}, {"mscale": 0}, {"mscale": 1.0, "mscale_all_dim": 0},
    {"mscale": 0.0, "mscale_all_dim": 0.7},
    {"mscale": 0.7, "mscale_all_dim": 0.9}, {"beta_fast": 0}, {"beta_slow": 0},
    {"truncate": None}, {"truncate": False}, {"attention_factor": None}], ids=str)
def test_zero_and_null_in_a_rope_mean_what_they_mean_to_transformers(said):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
            "original_max_position_embeddings": 64} | said
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4,
                                      max_position_embeddings=256, rope_parameters=rope)
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    ours, our_factor = scaled_frequencies(16, 1e4, RopeScaling.from_hf(rope, 256))
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-6)
    assert our_factor == pytest.approx(factor, rel=1e-12)


def test_every_setting_of_generation_config_is_decided():
    known = {*settings.GENERATION_READ, *settings.GENERATION_REFUSED,
             *frozenset().union(*settings.GENERATION_LEFT_OUT.values())}
    names = set(vars(transformers.GenerationConfig()))
    assert {"eos_token_id", "stop_strings", "suppress_tokens"} <= names and len(names) > 50
    assert names - known == set()


def test_generation_settings_of_old_files_do_not_sound_computed():
    """config.json held them once; transformers drops them there."""
    for name in transformers.GenerationConfig._get_default_generation_params():
        assert heeded("LlamaForCausalLM", {name: 3}) == {}, name


@pytest.mark.parametrize("module", [fields, settings, gguf_settings])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0 < doctest.testmod(module).attempted
