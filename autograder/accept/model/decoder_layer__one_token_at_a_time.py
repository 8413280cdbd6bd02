"""Token by token through the whole layer; the cache makes that the same."""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.layers import linear, rms_norm
from gearworks.model import feed_forward


def decoder_layer(x, weights, config, cos, sin, cache, index, rows=slice(None)):
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    out = [x[:0]]
    for t in range(len(x)):
        row = x[t:t + 1]
        heads = linear(rms_norm(row, weights.input_layernorm, config.rms_norm_eps),
                       weights.qkv_proj, weights.qkv_bias)
        q, k, v = np.split(heads.reshape(1, -1, d), [H, H + K], axis=1)
        if weights.q_norm is not None:
            q = rms_norm(q, weights.q_norm, config.rms_norm_eps)
        if weights.k_norm is not None:
            k = rms_norm(k, weights.k_norm, config.rms_norm_eps)
        q, k = (apply_rope(part, cos[t:t + 1], sin[t:t + 1]) for part in (q, k))
        row = row + linear(cache.attend(index, q, k, v).reshape(1, H * d), weights.o_proj)
        normed = rms_norm(row, weights.post_attention_layernorm, config.rms_norm_eps)
        out.append(row + feed_forward(normed, weights, config))
    return np.concatenate(out)[rows]
