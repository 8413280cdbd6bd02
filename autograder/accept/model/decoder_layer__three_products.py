"""Three separate products, each with its own rows of the fused matrix,
as the textbooks draw a layer."""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.layers import linear, rms_norm
from gearworks.model import feed_forward


def decoder_layer(x, weights, config, cos, sin, cache, index, rows=slice(None)):
    T, d, eps = len(x), config.head_dim, config.rms_norm_eps
    borders = np.cumsum([config.num_attention_heads * d, config.num_key_value_heads * d])
    normed = rms_norm(x, weights.input_layernorm, eps)
    biases = [None] * 3 if weights.qkv_bias is None else np.split(weights.qkv_bias, borders)
    q, k, v = (linear(normed, part, bias).reshape(T, len(part) // d, d)
               for part, bias in zip(np.split(weights.qkv_proj, borders), biases))
    if weights.q_norm is not None:
        q, k = rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps)
    heads = cache.attend(index, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)
    out = linear(np.asarray(heads).reshape(T, borders[0]), weights.o_proj)
    x = (x + out)[rows]
    return x + feed_forward(rms_norm(x, weights.post_attention_layernorm, eps), weights, config)
