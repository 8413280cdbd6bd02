"""Byte by byte."""

import struct

import numpy as np


def dequantize_q4_0(blocks):
    out = np.zeros((len(blocks), 32), np.float32)
    for n, block in enumerate(blocks.tolist()):
        (scale,) = struct.unpack("<e", bytes(block[:2]))
        for j, byte in enumerate(block[2:]):
            high, low = divmod(byte, 16)
            out[n, j], out[n, j + 16] = scale * (low - 8), scale * (high - 8)
    return out


def dequantize_q4_1(blocks):
    out = np.zeros((len(blocks), 32), np.float32)
    for n, block in enumerate(blocks.tolist()):
        scale, minimum = struct.unpack("<ee", bytes(block[:4]))
        for j, byte in enumerate(block[4:]):
            high, low = divmod(byte, 16)
            out[n, j], out[n, j + 16] = scale * low + minimum, scale * high + minimum
    return out
