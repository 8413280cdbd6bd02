"""Gemma-2 and Gemma-3, text only: a norm before and after each half of a layer, and windows.

The embedding is scaled by the root of its size, and attention scores by a number of the
configuration. In Gemma-2 scores and logits have a soft cap (that of the scores is the cache's
business: `kv_cache.attention_rules`). In Gemma-3 heads of queries and keys have norms in its
place, and the layers with a window turn their heads by another theta than the others.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, V vocabulary.
All float32.
Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size"; 2025,
"Gemma 3 Technical Report"; Hugging Face's Gemma2Model and Gemma3TextModel.
"""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.families.layouts import GemmaLayer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import gelu, linear, rms_norm
from gearworks.rope_scaling import scaled_angles


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    everywhere = scaled_angles(positions, config.head_dim, config.rope_theta,
                               config.rope_scaling)
    in_window = (everywhere if config.rope_local_theta is None else
                 scaled_angles(positions, config.head_dim, config.rope_local_theta, None))
    x = weights.embed_tokens[input_ids] * config.hidden_size ** 0.5                     # (T, D)
    for index, layer in enumerate(weights.layers):
        cos, sin = everywhere if config.window(index) is None else in_window
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    logits = linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)
    return capped(logits, config.logit_softcap)


def decoder_layer(x: np.ndarray, weights: GemmaLayer, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int) -> np.ndarray:
    """One layer; cos, sin: (T, 1, d); index: its number in the cache.
    x: (T, D); returns (T, D)."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps
    hidden = rms_norm(x, weights.input_layernorm, eps)
    qkv = linear(hidden, weights.qkv_proj).reshape(len(x), H + 2 * K, d)
    q, k = qkv[:, :H], qkv[:, H:H + K]
    if weights.q_norm is not None:
        q, k = rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    # attention itself divides by the root of d
    q = q * (d / config.query_pre_attn_scalar) ** 0.5
    attended = cache.attend(index, q, k, qkv[:, H + K:])                             # (T, H, d)
    x = x + rms_norm(linear(attended.reshape(len(x), H * d), weights.o_proj),
                     weights.post_attention_layernorm, eps)

    gate_up = linear(rms_norm(x, weights.pre_feedforward_layernorm, eps), weights.gate_up_proj)
    gate, up = gate_up[:, :config.intermediate_size], gate_up[:, config.intermediate_size:]
    return x + rms_norm(linear(gelu(gate) * up, weights.down_proj),
                        weights.post_feedforward_layernorm, eps)


def capped(logits: np.ndarray, limit: float | None) -> np.ndarray:
    """Logits brought between -limit and limit, gently; as they are where there is no limit.

    >>> capped(np.array([0.1, 60.0], np.float32), 30.0).round(2)
    array([ 0.1 , 28.92], dtype=float32)
    """
    return logits if limit is None else limit * np.tanh(logits / limit)
