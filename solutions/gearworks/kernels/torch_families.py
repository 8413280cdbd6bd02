"""Layers that are not like Llama's, in torch: what comes before attention, and what after it.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, F feed-forward
size.
"""

import torch
import torch.nn.functional as F

from gearworks.config import ModelConfig
from gearworks.families.layouts import GemmaLayer, GptOssLayer, LayerWeights, Olmo2Layer
from gearworks.kernels.torch_operators import Operators

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def before_olmo2(x: torch.Tensor, layer: Olmo2Layer, config: ModelConfig, cos: torch.Tensor,
                 sin: torch.Tensor, operators: Operators) -> Heads:
    """As `torch_model.before_attention`, with one norm of all queries, one of all keys, and
    none of x."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q, k, v = F.linear(x, layer.qkv_proj).split([H * d, K * d, K * d], dim=1)
    q = operators.norm(q, layer.q_norm, config.rms_norm_eps).view(-1, H, d)
    k = operators.norm(k, layer.k_norm, config.rms_norm_eps).view(-1, K, d)
    return operators.turn(q, cos, sin), operators.turn(k, cos, sin), v.reshape(-1, K, d)


def after_olmo2(x: torch.Tensor, attended: torch.Tensor, layer: Olmo2Layer,
                config: ModelConfig, operators: Operators) -> torch.Tensor:
    """As `torch_model.after_attention`, with norms of what is added."""
    eps = config.rms_norm_eps
    x = x + operators.norm(F.linear(attended.flatten(1), layer.o_proj),
                           layer.post_attention_layernorm, eps)
    gated = operators.swiglu(F.linear(x, layer.gate_up_proj))
    return x + operators.norm(F.linear(gated, layer.down_proj),
                              layer.post_feedforward_layernorm, eps)


def before_gemma(x: torch.Tensor, layer: GemmaLayer, config: ModelConfig, cos: torch.Tensor,
                 sin: torch.Tensor, operators: Operators) -> Heads:
    """As `torch_model.before_attention`, with scores that are scaled by another number."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = operators.norm(x, layer.input_layernorm, config.rms_norm_eps)
    q, k, v = F.linear(hidden, layer.qkv_proj).view(-1, H + 2 * K, d).split([H, K, K], dim=1)
    if layer.q_norm is not None:
        q = operators.norm(q, layer.q_norm, config.rms_norm_eps)
        k = operators.norm(k, layer.k_norm, config.rms_norm_eps)
    q = operators.turn(q, cos, sin) * (d / config.query_pre_attn_scalar) ** 0.5
    return q, operators.turn(k, cos, sin), v


def after_gemma(x: torch.Tensor, attended: torch.Tensor, layer: GemmaLayer,
                config: ModelConfig, operators: Operators) -> torch.Tensor:
    """As `torch_model.after_attention`, with norms before and after, and a gate of GELU."""
    eps = config.rms_norm_eps
    x = x + operators.norm(F.linear(attended.flatten(1), layer.o_proj),
                           layer.post_attention_layernorm, eps)
    hidden = operators.norm(x, layer.pre_feedforward_layernorm, eps)
    gate, up = F.linear(hidden, layer.gate_up_proj).chunk(2, dim=-1)
    gated = F.gelu(gate, approximate="tanh") * up
    return x + operators.norm(F.linear(gated, layer.down_proj),
                              layer.post_feedforward_layernorm, eps)


def after_mixture(x: torch.Tensor, attended: torch.Tensor, layer: LayerWeights,
                  config: ModelConfig, operators: Operators) -> torch.Tensor:
    """As `torch_model.after_attention`, with experts in the place of one network."""
    update = F.linear(attended.flatten(1), layer.o_proj, layer.o_bias)
    hidden = operators.norm(update, layer.post_attention_layernorm, config.rms_norm_eps, x)
    if layer.router is None:
        return x + F.linear(operators.swiglu(F.linear(hidden, layer.gate_up_proj)),
                            layer.down_proj)
    return x + mixture(hidden, layer, config, operators)


def mixture(hidden: torch.Tensor, layer: LayerWeights, config: ModelConfig,
            operators: Operators) -> torch.Tensor:
    """The weighted sum of what each token's experts say, as `moe.mixture`, `gpt_oss.mixture`.
    hidden: (T, D), returns (T, D).

    Which experts are visited is known to the processor only when the device has told it, so
    such a step is not recorded.
    """
    experts = config.experts
    scores = F.linear(hidden, layer.router, getattr(layer, "router_bias", None))        # (T, E)
    gates, chosen = scores.float().softmax(-1).topk(experts.num_experts_per_tok)        # (T, k)
    if experts.normalize:
        gates = gates / gates.sum(-1, keepdim=True)
    out = torch.zeros_like(hidden)
    for expert in chosen.unique().tolist():
        token, place = (chosen == expert).nonzero(as_tuple=True)
        if isinstance(layer, GptOssLayer):
            gate_up = F.linear(hidden[token], layer.gate_up_proj[expert],
                               layer.gate_up_bias[expert])
            gated = limited_swiglu(gate_up, experts.swiglu_alpha, experts.swiglu_limit)
            said = F.linear(gated, layer.down_proj[expert], layer.down_bias[expert])
        else:
            gated = operators.swiglu(F.linear(hidden[token], layer.gate_up_proj[expert]))
            said = F.linear(gated, layer.down_proj[expert])
        out[token] += gates[token, place, None].to(said.dtype) * said
    return out


def limited_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """As `gpt_oss.limited_swiglu`. gate_up: (T, 2F), gate and up by turns; returns (T, F)."""
    gate, up = gate_up[:, ::2].clamp(max=limit), gate_up[:, 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


# Of a family, what comes before attention and after it; None where that is Llama's.
LAYERS = {"Olmo2ForCausalLM": (before_olmo2, after_olmo2),
          "Gemma2ForCausalLM": (before_gemma, after_gemma),
          "Gemma3ForCausalLM": (before_gemma, after_gemma),
          "MixtralForCausalLM": (None, after_mixture),
          "Qwen3MoeForCausalLM": (None, after_mixture),
          "GptOssForCausalLM": (None, after_mixture)}
