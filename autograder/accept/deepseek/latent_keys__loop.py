"""Token by token."""

import numpy as np

from gearworks.families.deepseek import turn


def latent_keys(hidden, weights, config, cos, sin):
    r, size = config.latent.kv_lora_rank, config.latent.cached_size
    out = np.zeros((len(hidden), 1, size), np.float32)
    for token, x in enumerate(hidden):
        both = weights.kv_a_proj @ x
        root = float(np.sqrt(np.mean(both[:r].astype(np.float64) ** 2) + 1e-6))
        out[token, 0, :r] = both[:r] / root * weights.kv_a_layernorm
        out[token, 0, r:] = turn(both[None, None, r:], config, cos[token:token + 1],
                                 sin[token:token + 1])[0, 0]
    return out
