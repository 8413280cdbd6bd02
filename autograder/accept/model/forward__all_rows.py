"""All rows to the end; the wanted ones are picked before the head."""

from gearworks.layers import linear, rms_norm
from gearworks.model import decoder_layer, rotations


def forward(weights, config, input_ids, positions, cache, logits_at=slice(None)):
    cos, sin = rotations(config, positions)
    stream = weights.embed_tokens[input_ids]
    for number in range(config.num_hidden_layers):
        stream = decoder_layer(stream, weights.layers[number], config, cos, sin, cache, number)
    return linear(rms_norm(stream[logits_at], weights.norm, config.rms_norm_eps),
                  weights.lm_head)
