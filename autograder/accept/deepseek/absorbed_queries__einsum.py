"""With einsum, the scale first."""

import numpy as np

from gearworks.families.deepseek import head_queries, score_scale, turn


def absorbed_queries(hidden, weights, config, cos, sin):
    n, H = config.latent.qk_nope_head_dim, config.num_attention_heads
    q = (head_queries(hidden, weights, config)
         * (score_scale(config) * config.latent.cached_size ** 0.5))
    matrices = weights.kv_b_proj.reshape(H, n + config.latent.v_head_dim,
                                         config.latent.kv_lora_rank)
    carried = np.einsum("thn,hnr->thr", q[:, :, :n], matrices[:, :n])
    return np.concatenate((carried, turn(q[:, :, n:], config, cos, sin)), axis=2)
