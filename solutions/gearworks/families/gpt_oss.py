"""gpt-oss: attention that may look at nothing, and experts with biases and a limit.

Every head has a sink: a score that stands for no token, so what a query gives to it is given to
none. Sinks are weights, and attention is the cache's business; so they travel with the
configuration (`ModelConfig.sinks`), as windows do. Every second layer has a window.
An expert's gate and up are limited before they meet, and up is counted from minus one.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, E experts, k
experts for each token, F an expert's feed-forward size, V vocabulary. All float32.
Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"; Hugging Face's GptOssModel.
"""

from dataclasses import replace

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ExpertsConfig, ModelConfig
from gearworks.families.layouts import GptOssLayer, Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm
from gearworks.moe import route
from gearworks.rope_scaling import scaled_angles


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    cos, sin = scaled_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                           # (T, D)
    for index, layer in enumerate(weights.layers):
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    return linear(rms_norm(x[logits_at], weights.norm, config.rms_norm_eps), weights.lm_head)


def decoder_layer(x: np.ndarray, weights: GptOssLayer, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int) -> np.ndarray:
    """One layer; cos, sin: (T, 1, d); index: its number in the cache.
    x: (T, D); returns (T, D)."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = rms_norm(x, weights.input_layernorm, config.rms_norm_eps)
    qkv = linear(hidden, weights.qkv_proj, weights.qkv_bias).reshape(len(x), H + 2 * K, d)
    qk = apply_rope(qkv[:, :H + K], cos, sin)
    attended = cache.attend(index, qk[:, :H], qk[:, H:], qkv[:, H + K:])             # (T, H, d)
    x = x + linear(attended.reshape(len(x), H * d), weights.o_proj, weights.o_bias)
    hidden = rms_norm(x, weights.post_attention_layernorm, config.rms_norm_eps)
    return x + mixture(hidden, weights, config.experts)


def mixture(hidden: np.ndarray, weights: GptOssLayer, experts: ExpertsConfig) -> np.ndarray:
    """The weighted sum of what each token's experts say. hidden: (T, D), returns (T, D).

    A softmax over the chosen scores alone, as the model has it, is one over all scores whose
    chosen weights are made to sum to 1, as in `moe.route`.
    """
    scores = linear(hidden, weights.router, weights.router_bias)                        # (T, E)
    chosen, gates = route(scores, experts.num_experts_per_tok, normalize=True)
    out = np.zeros_like(hidden)
    for expert in np.unique(chosen):
        token, place = np.nonzero(chosen == expert)
        gate_up = linear(hidden[token], weights.gate_up_proj[expert],
                         weights.gate_up_bias[expert])
        said = linear(limited_swiglu(gate_up, experts.swiglu_alpha, experts.swiglu_limit),
                      weights.down_proj[expert], weights.down_bias[expert])
        out[token] += gates[token, place, None] * said
    return out


def limited_swiglu(gate_up: np.ndarray, alpha: float, limit: float) -> np.ndarray:
    """gate · sigmoid(alpha · gate) · (up + 1), each limited before.

    gate_up: (T, 2F), gate and up by turns; returns (T, F).

    >>> limited_swiglu(np.array([[9., 1., -9., -9.]], np.float32), 1000.0, 7.0).round(3)
    array([[14.,  0.]], dtype=float32)
    """
    gate = np.minimum(gate_up[:, ::2], np.float32(limit))
    up = gate_up[:, 1::2].clip(-limit, limit)
    with np.errstate(over="ignore"):                                # x / inf is the right limit
        return gate / (1 + np.exp(-alpha * gate)) * (up + 1)


def with_sinks(config: ModelConfig, weights: Weights) -> ModelConfig:
    """The configuration with each layer's sinks, (H,), where its weights have any."""
    sinks = tuple(getattr(layer, "sinks", None) for layer in weights.layers)
    return config if all(each is None for each in sinks) else replace(config, sinks=sinks)
