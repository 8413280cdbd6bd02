"""SmolLM3: Llama's layers, some of which know nothing of positions.

In every fourth layer queries and keys do not turn. What such a layer finds, it finds by content
alone, however far away; order comes from the layers between, and from the mask.

Shapes: T tokens, V vocabulary.
Source: Yang et al. 2025, "RoPE to NoPE and Back Again"; Hugging Face's SmolLM3Model.
"""

from collections.abc import Callable

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families.layouts import Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm
from gearworks.rope_scaling import angles_in_layer, scaled_angles


def forward(decoder_layer: Callable[..., np.ndarray], weights: Weights, config: ModelConfig,
            input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
            logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`, with `model.decoder_layer`, which gets other angles in some layers.
    input_ids, positions: (T,) integers; returns (rows, V)."""
    cos, sin = scaled_angles(positions, config.head_dim, config.rope_theta, config.rope_scaling)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                           # (T, D)
    for index, layer in enumerate(weights.layers):
        rows = logits_at if index == len(weights.layers) - 1 else slice(None)
        x = decoder_layer(x, layer, config, *angles_in_layer(config, index, cos, sin), cache,
                          index, rows)
    return linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head)
