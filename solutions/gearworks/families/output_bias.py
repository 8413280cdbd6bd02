"""Llama, Qwen3 and SmolLM3 with `attention_bias`: all four projections of attention have one.

Qwen2 has three of them always, which `model.decoder_layer` knows. The fourth, that of o_proj,
is added to the stream with its product. Nothing else differs.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size. All float32.
"""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.families.layouts import LayerWeights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm
from gearworks.moe import gated_network


def decoder_layer(x: np.ndarray, weights: LayerWeights, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int,
                  rows: Rows = slice(None)) -> np.ndarray:
    """As `model.decoder_layer`, with `weights.o_bias`.
    x: (T, D); cos, sin: (T, 1, d); returns (rows, D)."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps
    hidden = rms_norm(x, weights.input_layernorm, eps)
    qkv = linear(hidden, weights.qkv_proj, weights.qkv_bias).reshape(len(x), H + 2 * K, d)
    q, k, v = np.split(qkv, [H, H + K], axis=1)
    if weights.q_norm is not None:
        q, k = rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps)
    attended = cache.attend(index, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)
    x = x[rows] + linear(attended[rows].reshape(-1, H * d), weights.o_proj, weights.o_bias)
    hidden = rms_norm(x, weights.post_attention_layernorm, eps)
    return x + gated_network(hidden, weights.gate_up_proj, weights.down_proj)
