"""With what the engine has."""

from gearworks.quantization.rounding import from_zero_points, unpack_int4


def packed_matvec(packed, scales, zeros, x):
    return from_zero_points(unpack_int4(packed), scales, zeros).dequantize() @ x
