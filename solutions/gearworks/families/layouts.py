"""How the engine keeps each family's weights, and which tensors of a checkpoint make them.

A layer is described by its fields, as `LayerWeights` or the family's own kind of layer names
them; a field is made of the parts that a file keeps, stacked along the first axis. So one
product computes q, k and v.

Shapes: V vocabulary, D hidden size, F feed-forward size, H query heads, K key/value heads, d
head size, E experts. Names and shapes are Hugging Face's, in a file.
"""

from dataclasses import dataclass, replace

import numpy as np

from gearworks.config import ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are (out, in); norms are (D,).

    What follows `down_proj` belongs to some families only. Of a mixture of E experts,
    `gate_up_proj` is (E, 2F, D) and `down_proj` (E, D, F), and `router` is not None.
    """

    input_layernorm: np.ndarray
    qkv_proj: np.ndarray                        # ((H + 2K) · d, D): queries, keys, values
    o_proj: np.ndarray                          # (D, H · d)
    post_attention_layernorm: np.ndarray
    gate_up_proj: np.ndarray                    # (2F, D): gate, then up
    down_proj: np.ndarray                       # (D, F)
    qkv_bias: np.ndarray | None = None          # ((H + 2K) · d,): Qwen2
    o_bias: np.ndarray | None = None            # (D,): gpt-oss, Llama with biases
    q_norm: np.ndarray | None = None            # (d,): Qwen3, Gemma-3
    k_norm: np.ndarray | None = None            # (d,)
    router: np.ndarray | None = None            # (E, D)


@dataclass(frozen=True)
class GemmaLayer(LayerWeights):
    """A layer with a norm before and after each half."""

    pre_feedforward_layernorm: np.ndarray | None = None         # (D,), as the three others
    post_feedforward_layernorm: np.ndarray | None = None


@dataclass(frozen=True)
class GptOssLayer(LayerWeights):
    """A layer whose experts have biases, and whose gate and up are rows by turns."""

    router_bias: np.ndarray | None = None                       # (E,)
    gate_up_bias: np.ndarray | None = None                      # (E, 2F)
    down_bias: np.ndarray | None = None                         # (E, D)
    sinks: np.ndarray | None = None                             # (H,)


@dataclass(frozen=True)
class Olmo2Layer:
    """A layer whose norms come after what they belong to."""

    qkv_proj: np.ndarray                        # ((H + 2K) · d, D): queries, keys, values
    q_norm: np.ndarray                          # (H · d,): of all heads at once
    k_norm: np.ndarray                          # (K · d,)
    o_proj: np.ndarray                          # (D, H · d)
    post_attention_layernorm: np.ndarray        # (D,)
    gate_up_proj: np.ndarray                    # (2F, D): gate, then up
    down_proj: np.ndarray                       # (D, F)
    post_feedforward_layernorm: np.ndarray      # (D,)


@dataclass(frozen=True)
class LatentLayer:
    """A layer of DeepSeek-V2 or V3.

    Matrices are (out, in); norms have the size of what they scale. Of queries, either `q_proj`
    is there or the three that make them by way of a latent of their own. The feed-forward
    network is that of `LayerWeights`.
    """

    input_layernorm: np.ndarray
    kv_a_proj: np.ndarray                       # (latent + turning part of the key, D)
    kv_a_layernorm: np.ndarray
    kv_b_proj: np.ndarray                       # (H · (still part of the key + value), latent)
    o_proj: np.ndarray                          # (D, H · value)
    post_attention_layernorm: np.ndarray
    gate_up_proj: np.ndarray
    down_proj: np.ndarray
    q_proj: np.ndarray | None = None            # (H · key, D)
    q_a_proj: np.ndarray | None = None          # (query latent, D)
    q_a_layernorm: np.ndarray | None = None
    q_b_proj: np.ndarray | None = None          # (H · key, query latent)
    router: np.ndarray | None = None            # (E, D)
    router_bias: np.ndarray | None = None       # (E,): for the choice, not for the weights
    shared_gate_up_proj: np.ndarray | None = None
    shared_down_proj: np.ndarray | None = None


@dataclass(frozen=True)
class GPT2Layer:
    """One layer of GPT-2: matrices (out, in), biases (out,), norms and their biases (D,)."""

    qkv_proj: np.ndarray                        # (3D, D): queries, keys, values
    qkv_bias: np.ndarray
    o_proj: np.ndarray                          # (D, D)
    o_bias: np.ndarray
    up_proj: np.ndarray                         # (F, D)
    up_bias: np.ndarray
    down_proj: np.ndarray                       # (D, F)
    down_bias: np.ndarray
    input_layernorm: np.ndarray
    input_layernorm_bias: np.ndarray
    post_attention_layernorm: np.ndarray
    post_attention_layernorm_bias: np.ndarray


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder, in float32. `layers` holds the family's kind of layer."""

    embed_tokens: np.ndarray                    # (V, D)
    layers: tuple[LayerWeights | Olmo2Layer | LatentLayer | GPT2Layer, ...]
    norm: np.ndarray                            # (D,)
    lm_head: np.ndarray                         # (V, D); tied, the very array `embed_tokens`
    embed_positions: np.ndarray | None = None   # (max_position_embeddings, D): GPT-2
    norm_bias: np.ndarray | None = None         # (D,): GPT-2

    def nbytes(self) -> int:
        """Bytes of memory, tied weights counted once."""
        own = [array for name, array in vars(self).items()
               if name != "layers" and array is not None]
        arrays = own + [array for layer in self.layers for array in vars(layer).values()
                        if array is not None]
        return sum(array.nbytes for array in {id(array): array for array in arrays}.values())


# Families that store the weights of their norms as distances from one; and GGUF does not.
NORMS_FROM_ONE = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")


def layer_class(config: ModelConfig) -> type:
    """The kind of layer that a model of this configuration is made of."""
    if config.latent is not None:
        return LatentLayer
    return {"GPT2LMHeadModel": GPT2Layer, "GptOssForCausalLM": GptOssLayer,
            "Olmo2ForCausalLM": Olmo2Layer,
            **dict.fromkeys(NORMS_FROM_ONE, GemmaLayer)}.get(config.architecture, LayerWeights)


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One tensor of a checkpoint, of one matrix or, in (E, in, out), of all experts'.
    transposed: the file keeps (in, out), and the engine (out, in). pieces: the rows of each
    matrix, where the tensor is several, one below the other."""

    name: str
    shape: Shape
    transposed: bool = False
    pieces: Shape = ()

    @property
    def in_engine(self) -> Shape:
        """Its shape as the engine has it."""
        return (*self.shape[:-2], *self.shape[:-3:-1]) if self.transposed else self.shape


Fields = dict[str, list[Part]]


def layout(config: ModelConfig) -> tuple[Fields, list[Fields]]:
    """The fields of the model itself, and those of each layer."""
    V, D = config.vocab_size, config.hidden_size
    if config.architecture == "GPT2LMHeadModel":
        model = {"embed_tokens": [Part("transformer.wte.weight", (V, D))],
                 "embed_positions": [Part("transformer.wpe.weight",
                                          (config.max_position_embeddings, D))],
                 "norm": [Part("transformer.ln_f.weight", (D,))],
                 "norm_bias": [Part("transformer.ln_f.bias", (D,))]}
    else:
        model = {"embed_tokens": [Part("model.embed_tokens.weight", (V, D))],
                 "norm": [Part("model.norm.weight", (D,))]}
    if not config.tie_word_embeddings:
        model["lm_head"] = [Part("lm_head.weight", (V, D))]
    if config.architecture == "GPT2LMHeadModel":
        of_layer = _gpt2_layer
    elif config.latent is not None:
        of_layer = _latent_layer
    else:
        of_layer = {"Phi3ForCausalLM": _phi3_layer, "Olmo2ForCausalLM": _olmo2_layer,
                    "GptOssForCausalLM": _gpt_oss_layer}.get(config.architecture,
                                                             _decoder_layer)
    return model, [of_layer(config, layer) for layer in range(config.num_hidden_layers)]


def _decoder_layer(config: ModelConfig, layer: int) -> Fields:
    """Llama, Mistral, Qwen2, Qwen3, SmolLM3, Mixtral, Qwen3-MoE, Gemma-2 and Gemma-3."""
    D, d = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
    prefix = f"model.layers.{layer}."
    fields = {
        "input_layernorm": [Part(f"{prefix}input_layernorm.weight", (D,))],
        "qkv_proj": [Part(f"{prefix}self_attn.{name}_proj.weight", (rows, D))
                     for name, rows in (("q", queries), ("k", keys), ("v", keys))],
        "o_proj": [Part(f"{prefix}self_attn.o_proj.weight", (D, queries))],
        "post_attention_layernorm": [Part(f"{prefix}post_attention_layernorm.weight", (D,))],
    }
    if config.qkv_bias:
        fields["qkv_bias"] = [Part(f"{prefix}self_attn.{name}_proj.bias", (rows,))
                              for name, rows in (("q", queries), ("k", keys), ("v", keys))]
    if config.o_bias:
        fields["o_bias"] = [Part(f"{prefix}self_attn.o_proj.bias", (D,))]
    if config.qk_norm:
        fields |= {f"{name}_norm": [Part(f"{prefix}self_attn.{name}_norm.weight", (d,))]
                   for name in "qk"}
    if config.architecture in NORMS_FROM_ONE:
        fields |= {name: [Part(f"{prefix}{name}.weight", (D,))]
                   for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm")}
    return fields | _feed_forward(config, layer)


def _phi3_layer(config: ModelConfig, layer: int) -> Fields:
    """As Llama's, with one tensor for q, k and v, and one for gate and up."""
    fields = _decoder_layer(config, layer)
    for module, field in (("self_attn", "qkv_proj"), ("mlp", "gate_up_proj")):
        pieces = tuple(part.shape[0] for part in fields[field])
        fields[field] = [Part(f"model.layers.{layer}.{module}.{field}.weight",
                              (sum(pieces), config.hidden_size), pieces=pieces)]
    return fields


def _gpt_oss_layer(config: ModelConfig, layer: int) -> Fields:
    """All experts in one tensor, with rows for inputs; biases everywhere."""
    D, E, F = config.hidden_size, config.experts.num_experts, config.intermediate_size
    prefix = f"model.layers.{layer}."
    experts = f"{prefix}mlp.experts."
    fields = _decoder_layer(replace(config, experts=None), layer)
    return fields | {
        "router": [Part(f"{prefix}mlp.router.weight", (E, D))],
        "router_bias": [Part(f"{prefix}mlp.router.bias", (E,))],
        "gate_up_proj": [Part(f"{experts}gate_up_proj", (E, D, 2 * F), transposed=True)],
        "gate_up_bias": [Part(f"{experts}gate_up_proj_bias", (E, 2 * F))],
        "down_proj": [Part(f"{experts}down_proj", (E, F, D), transposed=True)],
        "down_bias": [Part(f"{experts}down_proj_bias", (E, D))],
        "sinks": [Part(f"{prefix}self_attn.sinks", (config.num_attention_heads,))]}


def _olmo2_layer(config: ModelConfig, layer: int) -> Fields:
    fields = _decoder_layer(config, layer)
    del fields["input_layernorm"]
    queries, keys, _ = (part.shape for part in fields["qkv_proj"])
    prefix = f"model.layers.{layer}."
    return fields | {
        "q_norm": [Part(f"{prefix}self_attn.q_norm.weight", queries[:1])],
        "k_norm": [Part(f"{prefix}self_attn.k_norm.weight", keys[:1])],
        "post_feedforward_layernorm": [Part(f"{prefix}post_feedforward_layernorm.weight",
                                            (config.hidden_size,))]}


def _feed_forward(config: ModelConfig, layer: int) -> Fields:
    """One network with a gate, or a router and as many networks as there are experts."""
    D = config.hidden_size
    prefix = f"model.layers.{layer}.mlp"
    if config.experts is None or not config.experts.sparse_layers[layer]:
        return _gated(prefix, D, config.intermediate_size)
    names = ("gate_proj", "up_proj", "down_proj")
    if config.architecture == "MixtralForCausalLM":
        prefix, names = f"model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")
    E = config.experts.num_experts
    each = [_gated(f"{prefix}.experts.{expert}", D, config.experts.intermediate_size, names)
            for expert in range(E)]
    fields = {"router": [Part(f"{prefix}.gate.weight", (E, D))]}
    fields |= {name: [part for expert in each for part in expert[name]]
               for name in ("gate_up_proj", "down_proj")}
    if config.experts.scoring == "sigmoid":
        fields["router_bias"] = [Part(f"{prefix}.gate.e_score_correction_bias", (E,))]
    if config.experts.shared_size:
        shared = _gated(f"{prefix}.shared_experts", D, config.experts.shared_size)
        fields |= {f"shared_{name}": parts for name, parts in shared.items()}
    return fields


def _gated(prefix: str, D: int, F: int,
           names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Fields:
    gate, up, down = (f"{prefix}.{name}.weight" for name in names)
    return {"gate_up_proj": [Part(gate, (F, D)), Part(up, (F, D))],
            "down_proj": [Part(down, (D, F))]}


def _latent_layer(config: ModelConfig, layer: int) -> Fields:
    """DeepSeek-V2 and V3."""
    D, H, latent = config.hidden_size, config.num_attention_heads, config.latent
    queries = H * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    prefix = f"model.layers.{layer}."

    def part(field: str, *shape: int) -> list[Part]:
        name = "kv_a_proj_with_mqa" if field == "kv_a_proj" else field
        return [Part(f"{prefix}self_attn.{name}.weight", shape)]

    fields = {"input_layernorm": [Part(f"{prefix}input_layernorm.weight", (D,))]}
    if latent.q_lora_rank is None:
        fields["q_proj"] = part("q_proj", queries, D)
    else:
        fields |= {"q_a_proj": part("q_a_proj", latent.q_lora_rank, D),
                   "q_a_layernorm": part("q_a_layernorm", latent.q_lora_rank),
                   "q_b_proj": part("q_b_proj", queries, latent.q_lora_rank)}
    fields |= {"kv_a_proj": part("kv_a_proj", latent.cached_size, D),
               "kv_a_layernorm": part("kv_a_layernorm", latent.kv_lora_rank),
               "kv_b_proj": part("kv_b_proj", H * (latent.qk_nope_head_dim + latent.v_head_dim),
                                 latent.kv_lora_rank),
               "o_proj": part("o_proj", D, H * latent.v_head_dim),
               "post_attention_layernorm": [Part(f"{prefix}post_attention_layernorm.weight",
                                                 (D,))]}
    return fields | _feed_forward(config, layer)


def _gpt2_layer(config: ModelConfig, layer: int) -> Fields:
    """GPT-2 stores its matrices as (in, out): its class for them was called Conv1D."""
    D, F = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    prefix = f"transformer.h.{layer}."
    fields = {}
    for field, name, shape in (("qkv", "attn.c_attn", (D, 3 * heads)),
                               ("o", "attn.c_proj", (heads, D)),
                               ("up", "mlp.c_fc", (D, F)), ("down", "mlp.c_proj", (F, D))):
        pieces = (heads,) * 3 if field == "qkv" else ()
        fields[f"{field}_proj"] = [Part(f"{prefix}{name}.weight", shape, True, pieces)]
        fields[f"{field}_bias"] = [Part(f"{prefix}{name}.bias", shape[1:], pieces=pieces)]
    for field, name in (("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2")):
        fields[field] = [Part(f"{prefix}{name}.weight", (D,))]
        fields[f"{field}_bias"] = [Part(f"{prefix}{name}.bias", (D,))]
    return fields
