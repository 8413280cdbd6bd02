"""Layers that are not like Llama's, in torch: what comes before attention, and what after it.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, F feed-forward
size.
"""

import torch
import torch.nn.functional as F

from gearworks.config import ModelConfig
from gearworks.families.layouts import GemmaLayer, Olmo2Layer
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


LAYERS = {"Olmo2ForCausalLM": (before_olmo2, after_olmo2),
          "Gemma2ForCausalLM": (before_gemma, after_gemma),
          "Gemma3ForCausalLM": (before_gemma, after_gemma)}
