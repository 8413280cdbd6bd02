"""With einsum over weights cut into heads."""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.layers import rms_norm
from gearworks.model import feed_forward


def decoder_layer(x, weights, config, cos, sin, cache, index, rows=slice(None)):
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    a = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    w = np.asarray(weights.qkv_proj).reshape(H + 2 * K, d, -1)
    heads = np.einsum("tx,hdx->thd", a, w)
    if weights.qkv_bias is not None:
        heads = heads + weights.qkv_bias.reshape(H + 2 * K, d)
    q, k, v = heads[:, :H], heads[:, H:-K], heads[:, -K:]
    if weights.q_norm is not None:
        q = rms_norm(q, weights.q_norm, config.rms_norm_eps)
        k = rms_norm(k, weights.k_norm, config.rms_norm_eps)
    seen = cache.attend(index, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)
    x = x[rows] + np.einsum("thd,xhd->tx", seen[rows], weights.o_proj.reshape(-1, H, d))
    b = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    return x + feed_forward(b, weights, config)
