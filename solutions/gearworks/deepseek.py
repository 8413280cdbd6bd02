"""DeepSeek-V2 and V3: multi-head latent attention, and experts that are chosen by groups.

What the cache holds of a token is one vector for all heads: a latent, from which every head's keys and values could be
made, and the part of the key that turns. Nobody makes them. A query's product with a key, q · (W c), equals (Wᵀ q) · c,
so each head's query is carried into the latent's space once, and attention runs there as if there were a single
key/value head: the keys are the cached vectors, and the values their first part.

Shapes: T tokens, D hidden size, H heads, r latent size, n and t the still and the turning part of a head's query,
V vocabulary. All float32.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1; DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.
"""

import numpy as np

from gearworks.attention import apply_rope, rope_angles
from gearworks.config import ModelConfig
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm, softmax
from gearworks.layouts import LatentLayer, Weights
from gearworks.moe import choose_experts, gated_network, keep_best_groups, mixture
from gearworks.rope_scaling import scaled_frequencies, yarn_mscale

LATENT_NORM_EPS = 1e-6              # of the norms of latents, whatever the configuration says of the others


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
            logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    length = int(positions.max(initial=-1)) + 1
    frequencies, magnitude = scaled_frequencies(config.head_dim, config.rope_theta, config.rope_scaling, length)
    cos, sin = (part * magnitude for part in rope_angles(positions, frequencies))
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                             # (T, D)
    for index, layer in enumerate(weights.layers):
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    return linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)


def decoder_layer(x: np.ndarray, weights: LatentLayer, config: ModelConfig, cos: np.ndarray, sin: np.ndarray,
                  cache: Cache, index: int) -> np.ndarray:
    """One layer; cos, sin: (T, 1, t); index: its number in the cache. x: (T, D); returns (T, D)."""
    hidden = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    x = x + latent_attention(hidden, weights, config, cos, sin, cache, index)
    hidden = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    if weights.router is None:
        return x + gated_network(hidden, weights.gate_up_proj, weights.down_proj)
    x = x + mixture(hidden, *choose(hidden, weights, config), weights.gate_up_proj, weights.down_proj)
    if weights.shared_gate_up_proj is not None:
        x = x + gated_network(hidden, weights.shared_gate_up_proj, weights.shared_down_proj)
    return x


def latent_attention(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig, cos: np.ndarray, sin: np.ndarray,
                     cache: Cache, index: int) -> np.ndarray:
    """Attention over latents. hidden: (T, D), normed; returns (T, D). The cache receives (T, 1, r + t)."""
    latent, T, H = config.latent, len(hidden), config.num_attention_heads
    r, n, t = latent.kv_lora_rank, latent.qk_nope_head_dim, latent.qk_rope_head_dim
    if weights.q_proj is not None:
        q = linear(hidden, weights.q_proj)
    else:
        compressed = rms_norm(linear(hidden, weights.q_a_proj), weights.q_a_layernorm, LATENT_NORM_EPS)
        q = linear(compressed, weights.q_b_proj)
    q = q.reshape(T, H, n + t)
    kv = linear(hidden, weights.kv_a_proj)                                                # (T, r + t)
    cached = np.empty((T, 1, r + t), np.float32)
    cached[:, 0, :r] = rms_norm(kv[:, :r], weights.kv_a_layernorm, LATENT_NORM_EPS)
    cached[..., r:] = turn(kv[:, None, r:], config, cos, sin)

    keys_and_values = weights.kv_b_proj.reshape(H, n + latent.v_head_dim, r)
    to_keys, to_values = keys_and_values[:, :n], keys_and_values[:, n:]                   # (H, n, r), (H, value, r)
    queries = np.empty((T, H, r + t), np.float32)
    queries[..., :r] = (q[..., :n].transpose(1, 0, 2) @ to_keys).transpose(1, 0, 2)
    queries[..., r:] = turn(q[..., n:], config, cos, sin)
    queries *= score_scale(config) * (r + t) ** 0.5                    # attention itself divides by the root of r + t
    mixed = cache.attend(index, queries, cached, cached[..., :r])                         # (T, H, r)
    values = mixed.transpose(1, 0, 2) @ to_values.transpose(0, 2, 1)                      # (H, T, value)
    return linear(values.transpose(1, 0, 2).reshape(T, H * latent.v_head_dim), weights.o_proj)


def turn(x: np.ndarray, config: ModelConfig, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE over (T, heads, t), where the rows of a pair may be neighbours; the result has them in halves."""
    if config.rope_interleaved:
        x = np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1)
    return apply_rope(x, cos, sin)


def score_scale(config: ModelConfig) -> float:
    """What attention scores are multiplied by: one over the root of a query's size, more in stretched contexts."""
    scale = (config.latent.qk_nope_head_dim + config.latent.qk_rope_head_dim) ** -0.5
    scaling = config.rope_scaling
    if scaling is not None and scaling.mscale_all_dim:
        scale *= yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2
    return scale


def choose(hidden: np.ndarray, weights: LatentLayer, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """The experts of each token and their weights, (T, k) each. hidden: (T, D)."""
    experts = config.experts
    scores = linear(hidden, weights.router)                                               # (T, E)
    if experts.scoring == "softmax":
        gates = ranking = softmax(scores)
    else:
        with np.errstate(over="ignore"):                                                  # 1 / inf is the right limit
            gates = 1 / (1 + np.exp(-scores))
        ranking = gates + weights.router_bias
    if experts.groups > 1:
        rest = 0 if experts.scoring == "softmax" else -np.inf
        ranking = keep_best_groups(ranking, experts.groups, experts.kept_groups, experts.best_of_group, rest)
    chosen, gates = choose_experts(gates, experts.num_experts_per_tok, experts.normalize, ranking)
    return chosen, gates * np.float32(experts.scale)
