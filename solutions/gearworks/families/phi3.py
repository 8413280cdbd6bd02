"""Phi-3 and Phi-4: Llama's layers, in whose heads some elements may not turn.

The first r elements of a head turn, element i with element i + r/2, and the others stay. A
product of a query and a key does not change when both have their elements in another order. So
rows of queries and keys are put into an order in which element i turns with element i + d/2
here too, and those that stay have an angle of zero: `rope_scaling.scaled_angles`.

    in files   0 1 2 | 3 4 5 | 6 7        r = 6, d = 8: 0 turns with 3
    here       0 1 2 6 | 3 4 5 7          0 with 3, and 6 with 7 by no angle

Nothing else differs: q, k and v are one tensor in files, as they are in the engine's memory,
and so are gate and up.

Shapes: D hidden size, H query heads, K key/value heads, d head size.
Source: Abdin et al. 2024, "Phi-3 Technical Report"; Hugging Face's Phi3Attention.
"""

import numpy as np

from gearworks.config import ModelConfig


def head_order(config: ModelConfig) -> np.ndarray | None:
    """Where each element of a query or a key stands in a head as files have it.
    Returns (d,) integers, or None where they stand in the same order."""
    if config.rotary_dim is None:
        return None
    turning, still = np.split(np.arange(config.head_dim), [config.rotary_dim])
    return np.concatenate([turning.reshape(2, -1), still.reshape(2, -1)], axis=1).ravel()


def row_order(name: str, config: ModelConfig) -> np.ndarray | None:
    """Where each row of a tensor, as the engine has it, stands in a file.

    name: Hugging Face's or GGUF's. Returns (rows,) integers, or None where they stand in the
    same order.
    """
    head = head_order(config)
    if head is None or not name.endswith(("qkv_proj.weight", "attn_qkv.weight")):
        return None
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    values = np.arange((H + K) * d, (H + 2 * K) * d)
    return np.concatenate([(np.arange(H + K)[:, None] * d + head).ravel(), values])
