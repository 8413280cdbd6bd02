"""The decoder: from token ids to logits, in one call for any mix of sequences.

Everything is token-major: T is the number of tokens in this step, of however many sequences, in
whatever phase. The model never sees where one sequence ends; `positions` tell it where each
token stands, and the cache knows whose keys each query may see. So prefill, chunked prefill,
decoding and batches are the same call with different rows.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, V vocabulary.
All float32.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families import deepseek, gemma, gpt2, gpt_oss, olmo2, output_bias, smollm3
from gearworks.families.layouts import LayerWeights, Weights
from gearworks.kv_cache import Cache, KVCache, Rows
from gearworks.layers import linear, rms_norm, swiglu
from gearworks.moe import mixture, route
from gearworks.rope_scaling import scaled_angles
from gearworks.weights import load_checkpoint


def decoder_layer(x: np.ndarray, weights: LayerWeights, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int,
                  rows: Rows = slice(None)) -> np.ndarray:
    """One pre-norm layer: attention, then feed-forward, each added to the residual stream.

    x: (T, D); cos, sin: (T, 1, d) from `rotations`; index: the layer's number in the cache;
    rows: the tokens whose output is wanted, by default all; returns (rows, D). The cache
    receives this step's rotated keys, of every token. Where the family has them, the products
    q, k and v add `weights.qkv_bias` (Qwen2), and every head of the queries and of the keys
    passes through a norm of its own, `weights.q_norm` and `weights.k_norm`, before it turns
    (Qwen3). `feed_forward` is the network of the second half: swiglu, or a mixture of experts.

    >>> config = ModelConfig("LlamaForCausalLM", vocab_size=3, hidden_size=2,
    ...                      intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
    ...                      num_key_value_heads=1, head_dim=2, max_position_embeddings=9,
    ...                      rms_norm_eps=1e-9, rope_theta=1e4, tie_word_embeddings=False)
    >>> eye, ones = np.eye(2, dtype=np.float32), np.ones(2, np.float32)
    >>> attention_only = LayerWeights(ones, np.concatenate([0 * eye, 0 * eye, eye]), eye, ones,
    ...                               np.zeros((4, 2), np.float32), 0 * eye)
    >>> cache, x = KVCache(config, 4), np.array([[1, 1], [1, -1]], np.float32)
    >>> decoder_layer(x, attention_only, config, *rotations(config, np.arange(2)), cache, 0)
    array([[ 2.,  2.],
           [ 2., -1.]], dtype=float32)
    >>> decoder_layer(x, attention_only, config, *rotations(config, np.arange(2, 4)), cache, 0,
    ...               rows=[-1])
    array([[ 2., -1.]], dtype=float32)
    >>> len(cache)
    4
    """
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    qkv = linear(hidden, weights.qkv_proj, weights.qkv_bias).reshape(len(x), H + 2 * K, d)
    qk, v = qkv[:, :H + K], qkv[:, H + K:]
    if weights.q_norm is not None:
        qk = np.concatenate([rms_norm(qk[:, :H], weights.q_norm, config.rms_norm_eps),
                             rms_norm(qk[:, H:], weights.k_norm, config.rms_norm_eps)], axis=1)
    qk = apply_rope(qk, cos, sin)
    attended = cache.attend(index, qk[:, :H], qk[:, H:], v)                          # (T, H, d)
    x = x[rows] + linear(attended[rows].reshape(-1, H * d), weights.o_proj)

    hidden = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    return x + feed_forward(hidden, weights, config)


def feed_forward(hidden: np.ndarray, weights: LayerWeights, config: ModelConfig) -> np.ndarray:
    """The second half of a layer: one network with a gate, or a mixture of experts.
    hidden: (T, D), returns (T, D)."""
    if weights.router is not None:
        experts, gates = route(linear(hidden, weights.router),
                               config.experts.num_experts_per_tok, config.experts.normalize)
        return mixture(hidden, experts, gates, weights.gate_up_proj, weights.down_proj)
    gate_up = linear(hidden, weights.gate_up_proj)                                    # (T, 2F)
    gate, up = gate_up[:, :config.intermediate_size], gate_up[:, config.intermediate_size:]
    return linear(swiglu(gate, up), weights.down_proj)


def rotations(config: ModelConfig, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cosine and sine of every token's rotations, however the model stretches its RoPE.

    positions: (T,) integers; returns two arrays (T, 1, d), as `rope_angles`.
    """
    return scaled_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling,
                         config.rotary_dim)


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """Run the decoder over the tokens of one step.

    input_ids, positions: (T,) integers, the tokens and each one's place in its own sequence;
    logits_at: which rows' logits are wanted, by default all; returns (rows, V). The cache grows
    by these T tokens. `rotations` turns them, however the model stretches its RoPE.

    >>> config = ModelConfig("LlamaForCausalLM", vocab_size=3, hidden_size=2,
    ...                      intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
    ...                      num_key_value_heads=1, head_dim=2, max_position_embeddings=9,
    ...                      rms_norm_eps=1e-9, rope_theta=1e4, tie_word_embeddings=False)
    >>> eye, ones = np.eye(2, dtype=np.float32), np.ones(2, np.float32)
    >>> adds_nothing = LayerWeights(ones, np.zeros((6, 2), np.float32), 0 * eye, ones,
    ...                             np.zeros((4, 2), np.float32), 0 * eye)
    >>> table, head = np.array([[3, 4], [0, 5], [1, 1]], np.float32), np.eye(3, 2)
    >>> weights = Weights(table, (adds_nothing,), ones, head.astype(np.float32))
    >>> cache = KVCache(config, 4)
    >>> forward(weights, config, np.array([1, 0]), np.arange(2), cache, logits_at=[-1]).round(2)
    array([[0.85, 1.13, 0.  ]], dtype=float32)
    >>> len(cache)
    2
    """
    cos, sin = rotations(config, positions)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                         # (T, D)
    last = len(weights.layers) - 1
    for index, layer in enumerate(weights.layers):
        # what the others would say, nobody asks any more
        rows = logits_at if index == last else slice(None)
        x = decoder_layer(x, layer, config, cos, sin, cache, index, rows)
    return linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head)


def checked_ids(config: ModelConfig, input_ids: np.ndarray,
                positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ids and positions of a step as arrays, (T,) each.

    Raises ModelError for ids that the vocabulary does not have, ValueError unless each has a
    position.
    """
    input_ids, positions = np.asarray(input_ids), np.asarray(positions)
    if input_ids.shape != positions.shape or input_ids.ndim != 1:
        raise ValueError(f"ids of shape {input_ids.shape} and positions of shape "
                         f"{positions.shape}; both are (T,)")
    if len(input_ids) and not 0 <= input_ids.min() <= input_ids.max() < config.vocab_size:
        raise ModelError("cannot run the model on these token ids",
                         f"they go from {input_ids.min()} to {input_ids.max()}, and the "
                         f"vocabulary has {config.vocab_size}",
                         "does the tokenizer belong to this model?")
    return input_ids, positions


_FORWARD = {"GPT2LMHeadModel": gpt2.forward, "Gemma2ForCausalLM": gemma.forward,
            "Gemma3ForCausalLM": gemma.forward, "GptOssForCausalLM": gpt_oss.forward,
            "Olmo2ForCausalLM": olmo2.forward, "DeepseekV2ForCausalLM": deepseek.forward,
            "SmolLM3ForCausalLM": partial(smollm3.forward, decoder_layer),
            "DeepseekV3ForCausalLM": deepseek.forward}


def family_forward(config: ModelConfig) -> Callable[..., np.ndarray]:
    """What runs a model of this configuration: `forward`, or its family's own."""
    if config.o_bias and config.architecture != "GptOssForCausalLM":
        return partial(smollm3.forward, output_bias.decoder_layer)
    return _FORWARD.get(config.architecture, forward)


class Model:
    """A configuration and its weights, ready to run."""

    has_fixed_shapes = True        # a row's products can be kept apart from its neighbours'

    def __init__(self, config: ModelConfig, weights: Weights):
        self.config = gpt_oss.with_sinks(config, weights)
        self.weights = weights

    @classmethod
    def load(cls, path: Path) -> "Model":
        """Load a GGUF file or an HF folder; errors as `load_checkpoint`."""
        return cls(*load_checkpoint(Path(path)))

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of up to `capacity` tokens."""
        return KVCache(self.config, capacity)

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
                logits_at: Rows = slice(None)) -> np.ndarray:
        """See the function `forward`; some families have one of their own.

        Raises ModelError for ids that the vocabulary does not have, ValueError unless each has
        a position.
        """
        input_ids, positions = checked_ids(self.config, input_ids, positions)
        return self.run(input_ids, positions, cache, logits_at)

    def run(self, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
            logits_at: Rows) -> np.ndarray:
        """As `forward`, for ids and positions that are known to be right."""
        family = family_forward(self.config)
        return family(self.weights, self.config, input_ids, positions, cache, logits_at)
