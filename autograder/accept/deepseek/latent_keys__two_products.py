"""A product for each part, in float64, with RoPE written out."""

import numpy as np


def latent_keys(hidden, weights, config, cos, sin):
    r = config.latent.kv_lora_rank
    x = hidden.astype(np.float64)
    latent, key = x @ weights.kv_a_proj[:r].T, x @ weights.kv_a_proj[r:].T
    latent = (latent / np.sqrt((latent ** 2).mean(axis=1, keepdims=True) + 1e-6)
              * weights.kv_a_layernorm)
    half = key.shape[1] // 2
    a, b = ((key[:, ::2], key[:, 1::2]) if config.rope_interleaved
            else (key[:, :half], key[:, half:]))
    c, s = cos[:, 0, :half], sin[:, 0, :half]
    return np.hstack([latent, a * c - b * s, a * s + b * c])[:, None].astype(np.float32)
