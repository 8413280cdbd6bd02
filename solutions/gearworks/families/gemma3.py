"""Gemma-3, text only: a norm before and after each half of a layer, and layers with a window.

The layers with a window turn their heads by another theta than the others. The embedding is
scaled by the root of its size, and attention scores by a number of the configuration.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, V vocabulary.
All float32.
Source: Gemma Team 2025, "Gemma 3 Technical Report"; Hugging Face's Gemma3TextModel.
"""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.families.layouts import Gemma3Layer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import gelu, linear, rms_norm
from gearworks.rope_scaling import scaled_angles


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    everywhere = scaled_angles(positions, config.head_dim, config.rope_theta,
                               config.rope_scaling)
    in_window = scaled_angles(positions, config.head_dim, config.rope_local_theta, None)
    x = weights.embed_tokens[input_ids] * config.hidden_size ** 0.5                     # (T, D)
    for index, layer in enumerate(weights.layers):
        cos, sin = everywhere if config.window(index) is None else in_window
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    return linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)


def decoder_layer(x: np.ndarray, weights: Gemma3Layer, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int) -> np.ndarray:
    """One layer; cos, sin: (T, 1, d); index: its number in the cache.
    x: (T, D); returns (T, D)."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps
    hidden = rms_norm(x, weights.input_layernorm, eps)
    qkv = linear(hidden, weights.qkv_proj).reshape(len(x), H + 2 * K, d)
    q = apply_rope(rms_norm(qkv[:, :H], weights.q_norm, eps), cos, sin)
    k = apply_rope(rms_norm(qkv[:, H:H + K], weights.k_norm, eps), cos, sin)
    # attention itself divides by the root of d
    q = q * (d / config.query_pre_attn_scalar) ** 0.5
    attended = cache.attend(index, q, k, qkv[:, H + K:])                             # (T, H, d)
    x = x + rms_norm(linear(attended.reshape(len(x), H * d), weights.o_proj),
                     weights.post_attention_layernorm, eps)

    gate_up = linear(rms_norm(x, weights.pre_feedforward_layernorm, eps), weights.gate_up_proj)
    gate, up = gate_up[:, :config.intermediate_size], gate_up[:, config.intermediate_size:]
    return x + rms_norm(linear(gelu(gate) * up, weights.down_proj),
                        weights.post_feedforward_layernorm, eps)
