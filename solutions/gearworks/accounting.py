"""What a model costs before it runs: parameters, bytes, FLOPs, and what speed hardware allows.

Everything here is arithmetic on a model's shape. Nothing is loaded and nothing is measured, so
a model of 70 billion parameters is counted as quickly as a small one, and models that this
engine cannot run are counted too.

Letters: V vocabulary, D hidden size, F feed-forward size, L layers, H query heads, K key/value
heads, d head size.
Units: bytes, FLOPs (one multiplication and one addition are two), seconds.
1 GB is 1e9 bytes, 1 GiB is 2**30.
Left out on purpose: activations, mixture-of-experts, and whatever a framework reserves for
itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gearworks.errors import ModelError

# How numbers are stored: (numbers in a block, bytes of a block). GGUF's formats keep 32 numbers
# in a block together with their scale (q4_0, q8_0), or with their scale and their minimum
# (q4_1). int4 is two bare codes in a byte.
BLOCKS: Mapping[str, tuple[int, int]] = {
    "float32": (1, 4), "bfloat16": (1, 2), "float16": (1, 2), "float8": (1, 1), "int8": (1, 1),
    "q8_0": (32, 34), "q4_1": (32, 20), "q4_0": (32, 18), "int4": (2, 1),
}

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    """What decides the cost of a decoder, in Hugging Face's names where those exist.

    Sizes: vocab_size V, hidden_size D, intermediate_size F, num_hidden_layers L,
    num_attention_heads H (query heads), num_key_value_heads K, head_dim d.
    Switches, all off by default:
    tie_word_embeddings: the output head is the embedding table itself, not a second one.
    qkv_bias: the projections q, k and v each add a bias. o_bias: so does the projection o.
    mlp_bias: so do gate, up and down. A bias has one number for each output of its matrix.
    qk_norm: queries and keys pass through a norm of their own; in each layer one weight (d,)
    serves all query heads, a second one all key heads.

    >>> shape = ModelShape(
    ...     vocab_size=10, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
    ...     num_attention_heads=2, num_key_value_heads=1, head_dim=2, o_bias=True)
    >>> shape.head_dim, shape.o_bias, shape.qkv_bias
    (2, True, False)
    """

    vocab_size: int                          # V
    hidden_size: int                         # D
    intermediate_size: int                   # F
    num_hidden_layers: int                   # L
    num_attention_heads: int                 # H
    num_key_value_heads: int                 # K
    head_dim: int                            # d
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read what a `config.json` holds, or `to_dict()` of a configuration of `transformers`.

        Knows Llama, Mistral, Qwen2 and Qwen3. Raises ModelError for another family, and for a
        field that is missing.

        >>> ModelShape.from_hf({"model_type": "qwen2", "vocab_size": 9, "hidden_size": 8,
        ...                     "intermediate_size": 16, "num_hidden_layers": 1,
        ...                     "num_attention_heads": 4, "num_key_value_heads": 2}).qkv_bias
        True
        """
        family = config.get("model_type")
        if family not in _FAMILIES:
            raise ModelError("cannot count this model", f"its model_type is {family!r}",
                             "give the configuration of one of " + ", ".join(_FAMILIES))
        bias = bool(config.get("attention_bias", False))
        try:
            heads = config["num_attention_heads"]
            return cls(
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_hidden_layers=config["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                # Qwen2 has these three always, and says so nowhere
                qkv_bias=bias or family == "qwen2",
                o_bias=bias,
                mlp_bias=bool(config.get("mlp_bias", False)),
                qk_norm=family == "qwen3",
            )
        except KeyError as missing:
            raise ModelError("cannot count this model", f"its configuration has no {missing}",
                             "give the whole content of config.json") from None


# From the config.json of each model. (V, D, F, L, H, K, d, tied)
SHAPES: Mapping[str, ModelShape] = {
    "SmolLM2-135M": ModelShape(49_152, 576, 1_536, 30, 9, 3, 64, True),
    "Qwen2.5-0.5B": ModelShape(151_936, 896, 4_864, 24, 14, 2, 64, True, qkv_bias=True),
    "Qwen3-0.6B": ModelShape(151_936, 1_024, 3_072, 28, 16, 8, 128, True, qk_norm=True),
    "Llama-3.2-1B": ModelShape(128_256, 2_048, 8_192, 16, 32, 8, 64, True),
    "Llama-2-7B": ModelShape(32_000, 4_096, 11_008, 32, 32, 32, 128),
    "Mistral-7B": ModelShape(32_000, 4_096, 14_336, 32, 32, 8, 128),
    "Qwen2.5-7B": ModelShape(152_064, 3_584, 18_944, 28, 28, 4, 128, qkv_bias=True),
    "Llama-3.1-8B": ModelShape(128_256, 4_096, 14_336, 32, 32, 8, 128),
    "Llama-2-13B": ModelShape(32_000, 5_120, 13_824, 40, 40, 40, 128),
    "Llama-2-70B": ModelShape(32_000, 8_192, 28_672, 80, 64, 8, 128),
}


def parameter_count(shape: ModelShape) -> int:
    """How many numbers were learned: every weight, bias and norm, each array counted once.

    The decoder: an embedding table (V, D); L layers; a final norm (D,); an output head (V, D),
    which is the embedding table itself where the two are tied.
    A layer: the projections q (H·d, D), k and v (K·d, D each), o (D, H·d); gate and up
    (F, D each), down (D, F); two norms (D,); and whatever the switches of `shape` add:
    `help(ModelShape)` says which matrices each of them covers.
    Equal to `num_parameters()` of the same model in `transformers`.

    >>> parameter_count(ModelShape(vocab_size=10, hidden_size=4, intermediate_size=6,
    ...                            num_hidden_layers=1, num_attention_heads=2,
    ...                            num_key_value_heads=1, head_dim=2))
    212
    """
    D, F, V = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    queries = shape.num_attention_heads * shape.head_dim                      # not always D
    keys = shape.num_key_value_heads * shape.head_dim
    attention = 2 * D * queries + 2 * D * keys
    if shape.qkv_bias:
        attention += queries + 2 * keys
    if shape.o_bias:
        attention += D
    if shape.qk_norm:
        attention += 2 * shape.head_dim
    feed_forward = 3 * D * F
    if shape.mlp_bias:
        feed_forward += 2 * F + D
    tables = V * D if shape.tie_word_embeddings else 2 * V * D
    return tables + shape.num_hidden_layers * (attention + feed_forward + 2 * D) + D


def stored_bytes(count: int, dtype: str) -> int:
    """Bytes that `count` numbers take when stored as `dtype`, a key of `BLOCKS`.
    Blocks are stored whole.

    Raises ModelError for a dtype that is not in `BLOCKS`. A ModelError is made of three texts,
    ModelError(what, why, hint): what cannot be done, why, and what to try.

    >>> stored_bytes(1000, "float16"), stored_bytes(64, "q4_0"), stored_bytes(65, "q4_0")
    (2000, 36, 54)
    """
    if dtype not in BLOCKS:
        raise ModelError("cannot tell how many bytes that takes",
                         f"{dtype!r} is no storage type that is known here",
                         "use one of " + ", ".join(BLOCKS))
    numbers, size = BLOCKS[dtype]
    return -(-count // numbers) * size


def memory_bytes(shape: ModelShape, dtype: str, tokens: int = 0,
                 cache_dtype: str = "float16") -> dict[str, int]:
    """What a model keeps in memory while it serves: {"weights": bytes, "kv_cache": bytes}.

    dtype, cache_dtype: keys of `BLOCKS`, for all weights and for the cache. tokens: all tokens
    whose keys and values are kept, of all sequences together; each layer keeps one key and one
    value of size d for every key/value head. The numbers of the weights are stored in one run
    of blocks, those of the cache in another.
    Raises ModelError for an unknown dtype.

    >>> memory_bytes(SHAPES["SmolLM2-135M"], "float32", tokens=100)
    {'weights': 538060032, 'kv_cache': 2304000}
    """
    numbers_per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    return {"weights": stored_bytes(parameter_count(shape), dtype),
            "kv_cache": stored_bytes(tokens * numbers_per_token, cache_dtype)}


def latent_cache_bytes(num_hidden_layers: int, kv_lora_rank: int, qk_rope_head_dim: int,
                       tokens: int, cache_dtype: str = "float16") -> int:
    """What multi-head latent attention keeps of so many tokens:
    one latent and one turning key per layer, for all heads.

    cache_dtype: a key of `BLOCKS`. Raises ModelError for an unknown one.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1; the sizes are in a model's config.json
    under these names.

    >>> latent_cache_bytes(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64,
    ...                    tokens=1)  # DeepSeek-V3
    70272
    """
    return stored_bytes(tokens * num_hidden_layers * (kv_lora_rank + qk_rope_head_dim),
                        cache_dtype)


def forward_flops(shape: ModelShape, new_tokens: int, past_tokens: int = 0,
                  logit_rows: int = 1) -> int:
    """FLOPs of the matrix products of one forward pass over one sequence.

    A multiplication and an addition are two. new_tokens: T, the tokens of this pass.
    past_tokens: those whose keys and values are in the cache already. A new token attends to
    the past, to the new tokens before it, and to itself; only these products count, masked ones
    do not. logit_rows: for how many of the new tokens the head computes logits.
    Left out: norms, softmax, RoPE, biases, activation functions; a percent or two at most.

    >>> forward_flops(SHAPES["SmolLM2-135M"], new_tokens=1)
    269028864
    """
    D, F = shape.hidden_size, shape.intermediate_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    # weights that each token meets in a layer
    matrices = 2 * D * queries + 2 * D * keys + 3 * D * F
    # (query, key) that may see each other
    pairs = new_tokens * past_tokens + new_tokens * (new_tokens + 1) // 2
    # q·k and probability·v, for every head
    layer = 2 * matrices * new_tokens + 2 * (2 * queries) * pairs
    return shape.num_hidden_layers * layer + 2 * shape.vocab_size * D * logit_rows


def bytes_moved(shape: ModelShape, dtype: str, batch: int = 1, new_tokens: int = 1,
                past_tokens: int = 0, cache_dtype: str = "float16") -> int:
    """Bytes that one step must move between memory and processor, however well it is written.

    batch: sequences in the step, each with `new_tokens` after its `past_tokens`. A step reads
    each weight, bias and norm once, whatever the batch; each sequence reads the keys and values
    of its past and writes those of its new tokens. The embedding look-up takes a few rows,
    which do not count, so a table that serves the look-up alone is not read; the output head is
    read whole. Activations are not counted. Blocks as for `memory_bytes`: the weights that are
    read are one run, all keys and values another.

    >>> bytes_moved(SHAPES["SmolLM2-135M"], "float32", batch=2, past_tokens=49)
    540364032
    """
    unread = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    tokens = batch * (past_tokens + new_tokens)
    kept = memory_bytes(shape, dtype, tokens, cache_dtype)["kv_cache"]
    return stored_bytes(parameter_count(shape) - unread, dtype) + kept


def roofline_tokens_per_second(shape: ModelShape, dtype: str, *, bandwidth: float,
                               flops_per_second: float, batch: int = 1, new_tokens: int = 1,
                               past_tokens: int = 0, cache_dtype: str = "float16") -> float:
    """The most tokens a second that a machine allows, all sequences of the batch together.

    bandwidth: bytes a second between memory and processor. flops_per_second: what the processor
    computes at best. The other arguments say what one step does, as for `bytes_moved`; each
    sequence needs one row of logits.
    A machine that is perfect moves data and computes at the same time.
    Source: Williams, Waterman & Patterson 2009.

    >>> round(roofline_tokens_per_second(SHAPES["SmolLM2-135M"], "float32", bandwidth=12.5e9,
    ...                                  flops_per_second=1e11), 1)
    23.2
    """
    flops = batch * forward_flops(shape, new_tokens, past_tokens)
    moved = bytes_moved(shape, dtype, batch, new_tokens, past_tokens, cache_dtype)
    return batch * new_tokens / max(flops / flops_per_second, moved / bandwidth)


def arithmetic_intensity(shape: ModelShape, dtype: str, batch: int = 1, new_tokens: int = 1,
                         past_tokens: int = 0, cache_dtype: str = "float16") -> float:
    """FLOPs that a step computes for each byte that it moves; arguments as for `bytes_moved`.

    >>> round(arithmetic_intensity(SHAPES["Llama-2-7B"], "float16"), 2)
    1.0
    """
    flops = batch * forward_flops(shape, new_tokens, past_tokens)
    return flops / bytes_moved(shape, dtype, batch, new_tokens, past_tokens, cache_dtype)
