"""DeepSeek-V2 and V3: multi-head latent attention, and experts that are chosen by groups.

What the cache holds of a token is one vector for all heads: a latent, from which every head's
keys and values could be made, and the part of the key that turns. Nobody makes them. A query's
product with a key, q · (W c), equals (Wᵀ q) · c, so each head's query is carried into the
latent's space once, and attention runs there as if there were a single key/value head: the keys
are the cached vectors, and the values their first part.

Shapes: T tokens, D hidden size, H heads, r latent size, n and t the still and the turning part
of a head's query, V vocabulary. All float32.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, and "DeepSeek-V3", section 2.1.
"""

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.families.layouts import LatentLayer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm, softmax
from gearworks.moe import choose_experts, gated_network, keep_best_groups, mixture
from gearworks.products import each_alone
from gearworks.rope_scaling import scaled_angles, yarn_mscale

LATENT_NORM_EPS = 1e-6  # of the norms of latents, whatever the configuration says of the others


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    cos, sin = scaled_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                           # (T, D)
    for index, layer in enumerate(weights.layers):
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    return linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)


def decoder_layer(x: np.ndarray, weights: LatentLayer, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int) -> np.ndarray:
    """One layer; cos, sin: (T, 1, t); index: its number in the cache.
    x: (T, D); returns (T, D)."""
    hidden = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    x = x + latent_attention(hidden, weights, config, cos, sin, cache, index)
    hidden = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    if weights.router is None:
        return x + gated_network(hidden, weights.gate_up_proj, weights.down_proj)
    x = x + mixture(hidden, *choose(hidden, weights, config), weights.gate_up_proj,
                    weights.down_proj)
    if weights.shared_gate_up_proj is not None:
        x = x + gated_network(hidden, weights.shared_gate_up_proj, weights.shared_down_proj)
    return x


def latent_attention(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig,
                     cos: np.ndarray, sin: np.ndarray, cache: Cache, index: int) -> np.ndarray:
    """Attention over latents. hidden: (T, D), normed; returns (T, D).
    The cache receives (T, 1, r + t)."""
    T, H, value = len(hidden), config.num_attention_heads, config.latent.v_head_dim
    n, r = config.latent.qk_nope_head_dim, config.latent.kv_lora_rank
    cached = latent_keys(hidden, weights, config, cos, sin)
    queries = each_alone(lambda *rows: absorbed_queries(rows[0], weights, config, *rows[1:]),
                         hidden, cos, sin)                                       # (T, H, r + t)
    mixed = cache.attend(index, queries, cached, cached[..., :r])                    # (T, H, r)
    to_values = weights.kv_b_proj.reshape(H, -1, r)[:, n:].transpose(0, 2, 1)    # (H, r, value)
    values = each_alone(lambda rows: (rows.transpose(1, 0, 2) @ to_values).transpose(1, 0, 2),
                        mixed)                                                   # (T, H, value)
    return linear(values.reshape(T, H * value), weights.o_proj)


def latent_keys(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig, cos: np.ndarray,
                sin: np.ndarray) -> np.ndarray:
    """What the cache gets of a token, for all heads: its latent, then the key's turning part.

    hidden: (T, D), normed; cos, sin: (T, 1, t) of the tokens' positions; returns (T, 1, r + t)
    float32. `weights.kv_a_proj` gives both parts at once, in this order. The latent has a norm
    of its own, of weight `weights.kv_a_layernorm` and of eps `LATENT_NORM_EPS`; the other part
    has none. r is `config.latent.kv_lora_rank`.
    Given: `turn` is RoPE for (T, heads, t), whichever rows of a checkpoint form a pair.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", sections 2.1.2 and 2.1.3.

    >>> from types import SimpleNamespace
    >>> from gearworks.config import LatentConfig
    >>> config = SimpleNamespace(latent=LatentConfig(None, 2, 2, 2, 1), rope_interleaved=False)
    >>> weights = SimpleNamespace(kv_a_proj=np.eye(4, dtype=np.float32),
    ...                           kv_a_layernorm=np.ones(2, np.float32))
    >>> hidden = np.array([[3, 4, 5, 6]], np.float32)
    >>> cos, sin = np.zeros((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    >>> latent_keys(hidden, weights, config, cos, sin).round(2)        # a quarter turn
    array([[[ 0.85,  1.13, -6.  ,  5.  ]]], dtype=float32)
    """
    r = config.latent.kv_lora_rank
    both = linear(hidden, weights.kv_a_proj)[:, None]                            # (T, 1, r + t)
    latent, turning = np.split(both, [r], axis=-1)                       # (T, 1, r), (T, 1, t)
    latent = rms_norm(latent, weights.kv_a_layernorm, LATENT_NORM_EPS)
    return np.concatenate([latent, turn(turning, config, cos, sin)], axis=-1)


def absorbed_queries(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig,
                     cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Each head's query, carried to the cached vectors: `attention` scores them as its keys.

    hidden: (T, D), normed; cos, sin: (T, 1, t) of the tokens' positions; returns (T, H, r + t)
    float32. `weights.kv_b_proj`, (H · (n + value), r), makes of a latent the keys and values of
    all heads: for each head in turn the n rows of its key's still part, then the rows of its
    value. The scores are to be `score_scale(config)` times the product of a query and a key,
    and `attention` divides by the root of the size of what it is given, r + t.
    Given: `head_queries` makes the queries as they are before, (T, H, n + t), still part first;
    `turn` is RoPE for (T, heads, t), whichever rows of a checkpoint form a pair; `score_scale`
    is one over the root of n + t, and more where YaRN stretches the context. n is
    `config.latent.qk_nope_head_dim`, r is `config.latent.kv_lora_rank`.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2.

    >>> from types import SimpleNamespace
    >>> from gearworks.config import LatentConfig
    >>> latent = LatentConfig(q_lora_rank=None, kv_lora_rank=2, qk_nope_head_dim=2,
    ...                       qk_rope_head_dim=2, v_head_dim=1)
    >>> config = SimpleNamespace(latent=latent, num_attention_heads=1, rope_scaling=None,
    ...                          rope_interleaved=False)
    >>> rows = np.array([[1, 0], [0, 10], [7, 7]], np.float32)     # two of the key, one value
    >>> weights = SimpleNamespace(q_proj=np.eye(4, dtype=np.float32), kv_b_proj=rows)
    >>> hidden = np.array([[3, 4, 5, 6]], np.float32)
    >>> cos, sin = np.ones((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32)
    >>> absorbed_queries(hidden, weights, config, cos, sin)            # nothing turns
    array([[[ 3., 40.,  5.,  6.]]], dtype=float32)
    """
    n, r = config.latent.qk_nope_head_dim, config.latent.kv_lora_rank
    H = config.num_attention_heads
    queries = head_queries(hidden, weights, config)                              # (T, H, n + t)
    still, turning = np.split(queries, [n], axis=-1)                     # (T, H, n), (T, H, t)
    to_keys = weights.kv_b_proj.reshape(H, -1, r)[:, :n]                             # (H, n, r)
    carried = (still.transpose(1, 0, 2) @ to_keys).transpose(1, 0, 2)                # (T, H, r)
    queries = np.concatenate([carried, turn(turning, config, cos, sin)], axis=-1)
    queries *= score_scale(config) * queries.shape[-1] ** 0.5
    return queries


def head_queries(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig) -> np.ndarray:
    """The queries of all heads before they turn: (T, H, n + t), still part first.
    hidden: (T, D), normed."""
    if weights.q_proj is not None:
        q = linear(hidden, weights.q_proj)
    else:
        compressed = rms_norm(linear(hidden, weights.q_a_proj), weights.q_a_layernorm,
                              LATENT_NORM_EPS)
        q = linear(compressed, weights.q_b_proj)
    size = config.latent.qk_nope_head_dim + config.latent.qk_rope_head_dim
    return q.reshape(len(hidden), config.num_attention_heads, size)


def turn(x: np.ndarray, config: ModelConfig, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE over (T, heads, t), where a pair's rows may be neighbours; the result has halves."""
    if config.rope_interleaved:
        x = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
    return apply_rope(x, cos, sin)


def score_scale(config: ModelConfig) -> float:
    """What scales scores: one over the root of a query's size, more in stretched contexts."""
    scale = (config.latent.qk_nope_head_dim + config.latent.qk_rope_head_dim) ** -0.5
    scaling = config.rope_scaling
    if scaling is not None and scaling.mscale_all_dim:
        scale *= yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2
    return scale


def choose(hidden: np.ndarray, weights: LatentLayer,
           config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each token and their weights, (T, k) each. hidden: (T, D)."""
    experts = config.experts
    scores = linear(hidden, weights.router)                                             # (T, E)
    if experts.scoring == "softmax":
        gates = ranking = softmax(scores)
    else:
        with np.errstate(over="ignore"):                            # 1 / inf is the right limit
            gates = 1 / (1 + np.exp(-scores))
        ranking = gates + weights.router_bias
    if experts.groups > 1:
        rest = 0 if experts.scoring == "softmax" else -np.inf
        ranking = keep_best_groups(ranking, experts.groups, experts.kept_groups,
                                   experts.best_of_group, rest)
    chosen, gates = choose_experts(gates, experts.num_experts_per_tok, experts.normalize,
                                   ranking)
    return chosen, gates * np.float32(experts.scale)
