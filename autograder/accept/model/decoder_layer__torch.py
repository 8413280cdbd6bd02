"""The products in PyTorch."""

import torch
from torch.nn.functional import linear, silu

from gearworks.attention import apply_rope
from gearworks.model import feed_forward


def _norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * torch.tensor(weight)


def decoder_layer(x, weights, config, cos, sin, cache, index, rows=slice(None)):
    H, K, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    bias = None if weights.qkv_bias is None else torch.tensor(weights.qkv_bias)
    stream = torch.tensor(x)
    qkv = linear(_norm(stream, weights.input_layernorm, eps), torch.tensor(weights.qkv_proj),
                 bias)
    q, k, v = qkv.view(len(x), H + 2 * K, config.head_dim).split([H, K, K], dim=1)
    if weights.q_norm is not None:
        q, k = _norm(q, weights.q_norm, eps), _norm(k, weights.k_norm, eps)
    heads = cache.attend(index, apply_rope(q.numpy(), cos, sin),
                         apply_rope(k.numpy(), cos, sin), v.numpy())
    stream = stream + linear(torch.tensor(heads).flatten(1), torch.tensor(weights.o_proj))
    normed = _norm(stream, weights.post_attention_layernorm, eps)
    if weights.router is not None:
        return (stream.numpy() + feed_forward(normed.numpy(), weights, config))[rows]
    gate, up = linear(normed, torch.tensor(weights.gate_up_proj)).chunk(2, -1)
    return (stream + linear(silu(gate) * up, torch.tensor(weights.down_proj))).numpy()[rows]
