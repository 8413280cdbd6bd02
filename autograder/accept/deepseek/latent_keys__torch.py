"""In PyTorch; rows are put in order in the weights."""

import numpy as np
import torch

from gearworks.attention import apply_rope


def latent_keys(hidden, weights, config, cos, sin):
    r, t = config.latent.kv_lora_rank, config.latent.qk_rope_head_dim
    rows = np.arange(t)
    if config.rope_interleaved:
        rows = rows.reshape(-1, 2).T.ravel()
    matrix = np.concatenate([weights.kv_a_proj[:r], weights.kv_a_proj[r:][rows]])
    latent, key = torch.nn.functional.linear(torch.tensor(hidden),
                                             torch.tensor(matrix)).split([r, t], dim=-1)
    latent = (latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + 1e-6)
              * torch.tensor(weights.kv_a_layernorm))
    return torch.cat([latent[:, None],
                      torch.tensor(apply_rope(key[:, None].numpy(), cos, sin))], dim=-1).numpy()
