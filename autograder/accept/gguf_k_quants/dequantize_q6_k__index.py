"""By tables of places: where each value has its bits."""

import numpy as np

PLACE = np.arange(256)
HALF, RUN, BYTE = PLACE // 128, PLACE % 128 // 32, PLACE % 32
LOW = 64 * HALF + 32 * (RUN % 2) + BYTE
HIGH = 128 + 32 * HALF + BYTE
NIBBLE, PAIR = (RUN // 2 * 4).astype(np.uint8), (RUN * 2).astype(np.uint8)


def dequantize_q6_k(blocks):
    codes = ((blocks[:, LOW] >> NIBBLE & 15).astype(np.float64)
             + 16.0 * (blocks[:, HIGH] >> PAIR & 3) - 32)
    scale = blocks[:, 208:].copy().view("<f2").astype(np.float64)
    scales = blocks[:, 192 + PLACE // 16].view(np.int8)
    return (scale * scales * codes).astype(np.float32)
