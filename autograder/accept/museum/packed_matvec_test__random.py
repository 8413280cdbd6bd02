"""Random matrices against a plain loop."""

import numpy as np


def packed_matvec_test(packed_matvec):
    rng = np.random.default_rng(7)
    for out, groups, size in ((3, 2, 4), (2, 3, 6), (1, 1, 8)):
        codes = rng.integers(0, 16, (out, groups * size))
        scales = rng.uniform(0.1, 5, (out, groups)).astype(np.float32)
        zeros = rng.integers(0, 16, (out, groups)).astype(np.uint8)
        x = rng.standard_normal(groups * size).astype(np.float32)
        packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).astype(np.uint8)
        right = [sum(float(scales[o, i // size]) * (int(codes[o, i]) - int(zeros[o, i // size]))
                     * float(x[i]) for i in range(groups * size)) for o in range(out)]
        np.testing.assert_allclose(packed_matvec(packed, scales, zeros, x), right, rtol=1e-3,
                                   atol=1e-3)
