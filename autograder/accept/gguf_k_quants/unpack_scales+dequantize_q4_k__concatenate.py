"""By concatenation, with both kinds of numbers at once."""

import numpy as np

from gearworks.formats.gguf_k_quants import unpack_nibbles


def unpack_scales(packed):
    groups = packed.reshape(-1, 3, 4)
    first = groups[:, :2] & 0b111111
    nibbles = np.stack([groups[:, 2] & 0xF, groups[:, 2] >> 4], axis=1)
    both = np.concatenate([first, nibbles + (groups[:, :2] >> 6) * np.uint8(16)], axis=2)
    return both[:, 0], both[:, 1]


def dequantize_q4_k(blocks):
    scale, minimum = (blocks[:, at:at + 2].copy().view("<f2").astype(np.float32)
                      for at in (0, 2))
    scales, minimums = unpack_scales(blocks[:, 4:16])
    codes = unpack_nibbles(blocks[:, 16:])
    return (codes * (scale * scales)[..., None]
            - (minimum * minimums)[..., None]).reshape(len(blocks), 256)
