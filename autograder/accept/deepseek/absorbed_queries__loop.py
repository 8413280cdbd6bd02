"""Head by head; the scale is that of the matrix and of the turning part."""

import numpy as np

from gearworks.families.deepseek import head_queries, score_scale, turn


def absorbed_queries(hidden, weights, config, cos, sin):
    sizes = config.latent
    n, r = sizes.qk_nope_head_dim, sizes.kv_lora_rank
    rows = n + sizes.v_head_dim
    q = head_queries(hidden, weights, config)
    scale = np.float32(score_scale(config) * np.sqrt(r + sizes.qk_rope_head_dim))
    out = np.zeros((len(hidden), config.num_attention_heads, r + sizes.qk_rope_head_dim),
                   np.float32)
    for head in range(config.num_attention_heads):
        matrix = weights.kv_b_proj[head * rows:head * rows + n]
        out[:, head, :r] = q[:, head, :n] @ (matrix * scale)
        out[:, head, r:] = turn(q[:, head:head + 1, n:], config, cos, sin)[:, 0] * scale
    return out
