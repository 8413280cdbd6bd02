"""In PyTorch, in float64."""

import torch

from gearworks.families.deepseek import head_queries, score_scale, turn


def absorbed_queries(hidden, weights, config, cos, sin):
    n = config.latent.qk_nope_head_dim
    q = torch.tensor(head_queries(hidden, weights, config)).double()
    matrices = torch.tensor(weights.kv_b_proj).double().unflatten(
        0, (config.num_attention_heads, -1))
    carried = torch.bmm(q[..., :n].transpose(0, 1), matrices[:, :n]).transpose(0, 1)
    turned = torch.tensor(turn(q[..., n:].float().numpy(), config, cos, sin)).double()
    scores = torch.cat([carried, turned], dim=-1) * score_scale(config)
    return (scores * scores.shape[-1] ** 0.5).float().numpy()
