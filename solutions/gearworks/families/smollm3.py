"""SmolLM3: Llama's layers, some of which know nothing of positions.

In every fourth layer queries and keys do not turn. What such a layer finds, it finds by content
alone, however far away; order comes from the layers between, and from the mask.

Shapes: T tokens, V vocabulary.
Source: Yang et al. 2025, "RoPE to NoPE and Back Again"; Hugging Face's SmolLM3Model.
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families.layouts import Weights
from gearworks.kv_cache import Cache, Rows
from gearworks.layers import linear, rms_norm
from gearworks.rope_scaling import angles_in_layer


def forward(weights: Weights, config: ModelConfig, input_ids: np.ndarray, positions: np.ndarray,
            cache: Cache, logits_at: Rows = slice(None)) -> np.ndarray:
    """As `model.forward`. input_ids, positions: (T,) integers; returns (rows, V)."""
    from gearworks.model import decoder_layer, rotations        # which itself knows of families

    cos, sin = rotations(config, positions)
    x = np.ascontiguousarray(weights.embed_tokens[input_ids])                           # (T, D)
    for index, layer in enumerate(weights.layers):
        rows = logits_at if index == len(weights.layers) - 1 else slice(None)
        x = decoder_layer(x, layer, config, *angles_in_layer(config, index, cos, sin), cache,
                          index, rows)
    return linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head)
