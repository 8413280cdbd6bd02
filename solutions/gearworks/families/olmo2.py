"""OLMo-2: norms after attention and after the feed-forward network, none before them.

What a layer adds to the residual stream has a norm, so that no layer can shout the others down;
what it reads comes as it is. All queries of a token pass through one norm, before heads are
told apart, and so do its keys.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, V vocabulary.
All float32.
Source: OLMo Team 2024, "2 OLMo 2 Furious", section 3.1; Hugging Face's Olmo2Model.
"""

from collections.abc import Callable

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.families.layouts import Olmo2Layer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm
from gearworks.moe import gated_network
from gearworks.rope_scaling import scaled_angles


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None),
            norm_of_heads: Callable[..., np.ndarray] = rms_norm) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V).
    norm_of_heads: of all queries or keys of a token at once, as `rms_norm`."""
    cos, sin = scaled_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                           # (T, D)
    for index, layer in enumerate(weights.layers):
        x = decoder_layer(x, layer, config, cos, sin, cache, index, norm_of_heads)
    return linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)


def decoder_layer(x: np.ndarray, weights: Olmo2Layer, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int,
                  norm_of_heads: Callable[..., np.ndarray] = rms_norm) -> np.ndarray:
    """One layer; cos, sin: (T, 1, d); index: its number in the cache.
    x: (T, D); returns (T, D)."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps
    qkv = linear(x, weights.qkv_proj)[:, None]                         # (T, 1, (H + 2K) · d)
    q, k, v = np.split(qkv, [H * d, (H + K) * d], axis=-1)
    q = apply_rope(norm_of_heads(q, weights.q_norm, eps).reshape(-1, H, d), cos, sin)
    k = apply_rope(norm_of_heads(k, weights.k_norm, eps).reshape(-1, K, d), cos, sin)
    attended = cache.attend(index, q, k, v.reshape(-1, K, d))                        # (T, H, d)
    x = x + rms_norm(linear(attended.reshape(-1, H * d), weights.o_proj),
                     weights.post_attention_layernorm, eps)
    return x + rms_norm(gated_network(x, weights.gate_up_proj, weights.down_proj),
                        weights.post_feedforward_layernorm, eps)
