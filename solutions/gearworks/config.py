"""What a model's `config.json`, or a GGUF file's metadata, says about its shape.

Only the fields that change a computation are kept. A field that this engine would have to ignore
is an error, never a silent approximation: a model that runs with the wrong RoPE still speaks English.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gearworks.errors import ModelError

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)

_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, in Hugging Face's names.

    D is `hidden_size`, F `intermediate_size`, L `num_hidden_layers`, H `num_attention_heads`,
    K `num_key_value_heads`, d `head_dim`, V `vocab_size`; the context is `max_position_embeddings` tokens.
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
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool

    def __post_init__(self):
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                     "num_key_value_heads", "head_dim", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _bad_config(f"{name} is {value!r}, where a positive integer is needed")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            # Within float32's range, in which the engine computes with them.
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-38 < value < 1e38:
                raise _bad_config(f"{name} is {value!r:.80}, where a positive number is needed")
        if not isinstance(self.tie_word_embeddings, bool):
            raise _bad_config(f"tie_word_embeddings is {self.tie_word_embeddings!r}, where true or false is needed")
        if self.num_attention_heads % self.num_key_value_heads:
            raise _bad_config(f"{self.num_attention_heads} query heads cannot share "
                              f"{self.num_key_value_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise _bad_config(f"head_dim is {self.head_dim}, and RoPE rotates pairs")

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
        if architecture not in SUPPORTED_ARCHITECTURES:
            raise _unsupported_architecture(architecture)
        for field, only in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
            if config.get(field, only) != only:
                raise _bad_config(f"{field} is {config[field]!r}; this engine computes {only!r} only")
        # transformers 5 keeps theta and scaling together in `rope_parameters`; older files have two fields
        rope = {}
        for field in ("rope_parameters", "rope_scaling"):
            parameters = config.get(field)
            if parameters is None:
                continue
            if not isinstance(parameters, Mapping):
                raise _bad_config(f"{field} is {parameters!r:.80}, where an object is needed")
            rope_type = parameters.get("rope_type", parameters.get("type", "default"))
            if rope_type != "default":
                raise _bad_config(f"RoPE scaling {rope_type!r:.80} is not supported")
            rope |= parameters
        try:
            heads = config["num_attention_heads"]
            head_dim = config.get("head_dim")
            if head_dim is None:
                head_dim = _divide(config["hidden_size"], heads)
            kv_heads = config.get("num_key_value_heads")
            return cls(
                architecture=architecture,
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_hidden_layers=config["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=heads if kv_heads is None else kv_heads,
                head_dim=head_dim,
                max_position_embeddings=config["max_position_embeddings"],
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
                tie_word_embeddings=config.get("tie_word_embeddings", False),
            )
        except KeyError as missing:
            raise _bad_config(f"the field {missing} is missing") from None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tied: bool) -> "ModelConfig":
        """Read a GGUF file's metadata. `tied`: whether the file has no `output.weight` of its own.

        Raises ModelError as `from_hf` does.
        """
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in _GGUF_ARCHITECTURES:
            raise _unsupported_architecture(name)

        def field(key: str, kind: type, *default):
            value = metadata.get(f"{name}.{key}", *default)
            if value is None:
                raise _bad_config(f"the metadata key {name}.{key} is missing")
            if type(value) not in (kind, int):              # a whole number may stand for a float
                raise _bad_config(f"the metadata key {name}.{key} is a {type(value).__name__}, not a {kind.__name__}")
            return value

        # llama.cpp scales by a factor whether or not a type is named with it
        scaling = field("rope.scaling.type", str, "none")
        factors = [field(key, float, 1) for key in ("rope.scaling.factor", "rope.scale_linear")]
        if scaling != "none" or any(factor not in (0, 1) for factor in factors):
            raise _bad_config(f"RoPE scaling ({scaling!r:.80}, factors {factors}) is not supported")
        heads = field("attention.head_count", int)
        head_dim = field("attention.key_length", int, 0) or _divide(field("embedding_length", int), heads)
        if field("attention.value_length", int, head_dim) != head_dim:
            raise _bad_config("keys and values of different sizes are not supported")
        if field("rope.dimension_count", int, head_dim) != head_dim:
            raise _bad_config("RoPE over a part of each head is not supported")
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list):
            raise _bad_config("the metadata key tokenizer.ggml.tokens is missing, or no list of strings")
        return cls(
            architecture=_GGUF_ARCHITECTURES[name],
            vocab_size=len(tokens),
            hidden_size=field("embedding_length", int),
            intermediate_size=field("feed_forward_length", int),
            num_hidden_layers=field("block_count", int),
            num_attention_heads=heads,
            num_key_value_heads=field("attention.head_count_kv", int, heads),
            head_dim=head_dim,
            max_position_embeddings=field("context_length", int),
            # GGUF keeps the float32 nearest to the 1e-05 that was meant; six digits give it back
            rms_norm_eps=float(f"{field('attention.layer_norm_rms_epsilon', float):.6g}"),
            rope_theta=field("rope.freq_base", float, 10_000.0),
            tie_word_embeddings=tied,
        )

    def to_hf(self) -> dict[str, Any]:
        """The object to write as `config.json`, as `transformers` 5 reads it; `from_hf` is its inverse."""
        return {
            "architectures": [self.architecture],
            "model_type": "llama",
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


def _divide(hidden_size: Any, heads: Any) -> int:
    if not isinstance(hidden_size, int) or not isinstance(heads, int) or heads < 1 or hidden_size % heads:
        raise _bad_config(f"a hidden size of {hidden_size!r} does not divide into {heads!r} heads")
    return hidden_size // heads


def _bad_config(why: str) -> ModelError:
    return ModelError("the model's configuration cannot be used", why,
                      "check config.json (or the GGUF metadata) against the model's publisher")


def _unsupported_architecture(name: Any) -> ModelError:
    return ModelError(f"the architecture {name!r} is not supported",
                      "this engine runs " + ", ".join(SUPPORTED_ARCHITECTURES),
                      "use a model of one of these, or run this one with transformers")
