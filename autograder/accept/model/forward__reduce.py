"""The layers as a fold, the embedding as a product with a one-hot matrix,
the head at the very end."""

from functools import reduce

import numpy as np

from gearworks.layers import rms_norm
from gearworks.model import decoder_layer, rotations


def forward(weights, config, input_ids, positions, cache, logits_at=slice(None)):
    angles = rotations(config, np.asarray(positions))
    one_hot = np.zeros((len(input_ids), config.vocab_size), np.float32)
    one_hot[np.arange(len(input_ids)), input_ids] = 1
    last = reduce(lambda x, numbered: decoder_layer(x, numbered[1], config, *angles, cache,
                                                    numbered[0]), enumerate(weights.layers),
                  one_hot @ weights.embed_tokens)
    return (rms_norm(last, weights.norm, config.rms_norm_eps) @ weights.lm_head.T)[logits_at]
