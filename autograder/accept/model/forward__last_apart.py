"""With the rows picked inside of the last layer, which is not like the others."""

import numpy as np

from gearworks.layers import linear, rms_norm
from gearworks.model import decoder_layer, rotations


def forward(weights, config, input_ids, positions, cache, logits_at=slice(None)):
    cos, sin = rotations(config, positions)
    x = np.take(weights.embed_tokens, input_ids, axis=0)
    *others, last = weights.layers
    for index, layer in enumerate(others):
        x = decoder_layer(x, layer, config, cos, sin, cache, index)
    x = decoder_layer(x, last, config, cos, sin, cache, len(others), logits_at)
    x = rms_norm(x, weights.norm, config.rms_norm_eps)
    return linear(x, weights.lm_head)
