"""What is packed by the engine's own packer must come back, column by column."""

import numpy as np

from gearworks.quantization.rounding import pack_int4, quantize_int4


def packed_matvec_test(packed_matvec):
    weight = np.random.default_rng(3).standard_normal((5, 16)).astype(np.float32)
    weight[:, 8:] = 20 * weight[:, 8:] + 15
    codes, scales, zeros = quantize_int4(weight, 8)
    for column, x in enumerate(np.eye(16, dtype=np.float32)):
        got = packed_matvec(pack_int4(codes), scales, zeros, x)
        allowed = scales[:, column // 8] * 0.51
        assert (np.abs(got - weight[:, column]) <= allowed).all(), column
