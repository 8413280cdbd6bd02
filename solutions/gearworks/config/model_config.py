"""What a model's `config.json`, or a GGUF file's metadata, says about its shape.

Only the fields that change a computation are kept. A field that this engine would have to
ignore is an error, never a silent approximation: a model that runs with the wrong RoPE still
speaks English.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gearworks.config.architectures import (
    SUPPORTED_ARCHITECTURES, ExpertsConfig, LatentConfig, family_fields)
from gearworks.config.fields import bad_config, require_positive, require_sizes, size
from gearworks.config.gguf_architectures import GGUF_ARCHITECTURES, gguf_fields
from gearworks.config.rope import RopeScaling
from gearworks.errors import ModelError

# The families that are written to GGUF files, and what such a file calls each.
GGUF_NAMES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama",
              "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, in Hugging Face's names.

    D is `hidden_size`, F `intermediate_size`, L `num_hidden_layers`, H `num_attention_heads`,
    K `num_key_value_heads`, d `head_dim`, V `vocab_size`; the context is
    `max_position_embeddings` tokens.
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
    # how many tokens a layer looks back, None for all; () if none does
    windows: tuple[int | None, ...] = ()
    qkv_bias: bool = False                          # Qwen2
    o_bias: bool = False                            # gpt-oss; where a file says attention_bias
    qk_norm: bool = False                           # Qwen3, Gemma-3
    experts: ExpertsConfig | None = None            # Mixtral, Qwen3-MoE, DeepSeek
    latent: LatentConfig | None = None              # DeepSeek
    rope_local_theta: float | None = None           # Gemma-3: of the layers with a window
    # Gemma-3: scores are divided by its root instead of that of d
    query_pre_attn_scalar: float | None = None
    rope_interleaved: bool = False                  # DeepSeek: rows of a pair are neighbours
    # Phi-3: how many of a head's elements turn, the first ones; None for all
    rotary_dim: int | None = None
    # SmolLM3: for each layer, whether its heads turn; () if all do
    rope_layers: tuple[bool, ...] = ()
    attention_softcap: float | None = None          # Gemma-2: of the scores
    logit_softcap: float | None = None              # Gemma-2: of the logits
    # gpt-oss: each layer's (H,), which `Model` takes from its weights
    sinks: tuple[np.ndarray | None, ...] = field(default=(), repr=False, compare=False)
    # DeepSeek-V3: layers after the last, for guessing ahead; never run
    prediction_layers: int = 0

    def window(self, layer: int) -> int | None:
        """How many tokens a query of this layer looks back, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    def turns(self, layer: int) -> bool:
        """Whether the heads of this layer turn with their positions, by RoPE."""
        return self.rope_layers[layer] if self.rope_layers else True

    def __post_init__(self):
        require_sizes(self, "vocab_size", "hidden_size", "intermediate_size",
                      "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                      "head_dim", "max_position_embeddings")
        require_positive(self, "rms_norm_eps", "rope_theta")
        if not isinstance(self.tie_word_embeddings, bool):
            raise bad_config(f"tie_word_embeddings is {self.tie_word_embeddings!r:.80}, where "
                             "true or false is needed")
        if self.num_attention_heads % self.num_key_value_heads:
            raise bad_config(f"{self.num_attention_heads} query heads cannot share "
                             f"{self.num_key_value_heads} key/value heads evenly")
        if self.head_dim % 2 and self.architecture != "GPT2LMHeadModel":
            raise bad_config(f"head_dim is {self.head_dim}, and RoPE rotates pairs")
        if self.rotary_dim is not None and (
                size("the number of elements that turn", self.rotary_dim) % 2
                or self.rotary_dim > self.head_dim):
            raise bad_config(f"of a head of {self.head_dim}, {self.rotary_dim} elements cannot "
                             "turn in pairs")
        turning = self.head_dim if self.rotary_dim is None else self.rotary_dim
        for name, factors in (self.rope_scaling.of_pairs if self.rope_scaling else {}).items():
            if len(factors) != turning // 2:
                raise bad_config(f"{name} of the RoPE has {len(factors)} factors, and of "
                                 f"{turning} elements that turn there are {turning // 2} pairs")
        if (self.rope_scaling is not None and self.rope_scaling.kind == "dynamic"
            and self.head_dim == 2):
            raise bad_config("dynamic RoPE scaling needs heads of more than one pair")
        if (self.rope_scaling is not None and self.rope_scaling.kind == "yarn"
            and self.rope_theta <= 1):
            raise bad_config(f"rope_theta is {self.rope_theta}, and YaRN needs pairs that get "
                             "slower one by one")
        for window in self.windows:
            if window is not None:
                size("sliding_window", window)
        for name in ("rope_local_theta", "query_pre_attn_scalar", "attention_softcap",
                     "logit_softcap"):
            if getattr(self, name) is not None:
                require_positive(self, name)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelConfig":
        """Read the object that `config.json` holds.

        Raises ModelError for an unsupported architecture (by name, with the supported ones), a
        missing or impossible field, and for any setting that the engine does not compute.
        """
        if not isinstance(config, Mapping):
            raise bad_config("it is not a JSON object")
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            raise bad_config("it names no architecture")
        architecture = architectures[0]
        if architecture not in SUPPORTED_ARCHITECTURES:
            raise ModelError(f"the architecture {architecture!r:.80} is not supported",
                             "this engine runs " + ", ".join(SUPPORTED_ARCHITECTURES),
                             "use a model of one of these, or run this one with transformers")
        _refuse_other_weights(config)
        return cls(architecture=architecture, **family_fields(architecture, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tied: bool,
                  rope_factors: Mapping[str, Sequence[float]] = {}) -> "ModelConfig":
        """Read a GGUF file's metadata.

        tied: whether the file has no `output.weight` of its own. rope_factors: what those of
        its tensors hold that `gguf_layouts.ROPE_FACTORS` names.
        Raises ModelError as `from_hf` does.
        """
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
            raise ModelError(f"the GGUF architecture {name!r:.80} is not supported",
                             "this engine reads " + ", ".join(GGUF_ARCHITECTURES)
                             + " from GGUF files",
                             "use the model's safetensors, if its family is one of "
                             + ", ".join(SUPPORTED_ARCHITECTURES))
        return cls(tie_word_embeddings=tied, **gguf_fields(name, metadata, rope_factors))

    def to_gguf(self) -> dict[str, Any]:
        """The keys of a GGUF file that describe such a model; `from_gguf` is the inverse.

        Raises ModelError for a family that has no name there. What the keys cannot say is not
        told here: read them back to see.
        """
        if self.architecture not in GGUF_NAMES:
            raise ModelError(f"cannot write a model of the architecture {self.architecture} to "
                             "a GGUF file", "this engine writes " + ", ".join(GGUF_NAMES),
                             "save it as a folder")
        name = GGUF_NAMES[self.architecture]
        settings = {"block_count": self.num_hidden_layers,
                    "context_length": self.max_position_embeddings,
                    "embedding_length": self.hidden_size,
                    "feed_forward_length": self.intermediate_size,
                    "attention.head_count": self.num_attention_heads,
                    "attention.head_count_kv": self.num_key_value_heads,
                    "attention.key_length": self.head_dim,
                    "attention.value_length": self.head_dim,
                    "attention.layer_norm_rms_epsilon": float(self.rms_norm_eps),
                    "rope.dimension_count": self.head_dim,
                    "rope.freq_base": float(self.rope_theta), "vocab_size": self.vocab_size}
        return {"general.architecture": name} | {f"{name}.{key}": value
                                                 for key, value in settings.items()}


def _refuse_other_weights(config: Mapping[str, Any]) -> None:
    """Weights that mean nothing without their scales must not be taken for plain numbers."""
    for name in ("quantization_config", "compression_config", "quantization"):  # the last: MLX
        quantization = config.get(name)
        if quantization is not None:
            method = (quantization.get("quant_method") if isinstance(quantization, Mapping)
                      else None)
            raise ModelError(
                "the model's weights are quantized",
                f"{name} names the method {method!r:.80}, which this engine does not read",
                "use the publisher's BF16 or FP16 weights, or a GGUF file of the model")
