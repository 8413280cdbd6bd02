"""GPT-2: the decoder before RoPE, RMSNorm and gates.

Positions are learned vectors, added to the embedding once. The norms subtract the mean, every
product has a bias, the feed-forward network has no gate, and its activation is GELU. It was
pre-norm already.

Shapes: T tokens, D hidden size, H heads, d head size, V vocabulary. All float32.
Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families.layouts import GPT2Layer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import gelu, layer_norm, linear


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V).

    Raises ModelError for a position that has no vector.
    """
    require_learned(positions, weights.embed_positions)
    x = weights.embed_tokens[input_ids] + weights.embed_positions[positions]            # (T, D)
    for index, layer in enumerate(weights.layers):
        x = decoder_layer(x, layer, config, cache, index)
    x = layer_norm(x[logits_at], weights.norm, weights.norm_bias, config.rms_norm_eps)
    return linear(x, weights.lm_head)


def require_learned(positions: np.ndarray, learned: np.ndarray) -> None:
    """Raise ModelError for a position that has no vector. learned: (positions, D)."""
    if positions.max(initial=0) >= len(learned):
        raise ModelError("the sequence is too long for this model",
                         f"it reaches position {positions.max()}, and positions up to "
                         f"{len(learned) - 1} were learned",
                         "shorten the prompt or the answer")


def decoder_layer(x: np.ndarray, weights: GPT2Layer, config: ModelConfig, cache: Cache,
                  index: int) -> np.ndarray:
    """One layer; index: its number in the cache. x: (T, D); returns (T, D)."""
    T, H, d = len(x), config.num_attention_heads, config.head_dim
    hidden = layer_norm(x, weights.input_layernorm, weights.input_layernorm_bias,
                        config.rms_norm_eps)
    qkv = linear(hidden, weights.qkv_proj, weights.qkv_bias).reshape(T, 3, H, d)
    attended = cache.attend(index, qkv[:, 0], qkv[:, 1], qkv[:, 2])                  # (T, H, d)
    x = x + linear(attended.reshape(T, H * d), weights.o_proj, weights.o_bias)
    hidden = layer_norm(x, weights.post_attention_layernorm,
                        weights.post_attention_layernorm_bias, config.rms_norm_eps)
    return x + linear(gelu(linear(hidden, weights.up_proj, weights.up_bias)), weights.down_proj,
                      weights.down_bias)
