"""Zero points are stored as each version stores them, and must come back."""

import numpy as np


def zero_points_test(zero_points):
    wanted = np.stack([np.roll(np.arange(16), shift) for shift in range(16)])
    for version in (1, 2):
        stored = (wanted - 1) % 16 if version == 1 else wanted
        words = np.zeros((16, 2), np.int64)
        for place in range(16):
            words[:, place // 8] |= stored[:, place].astype(np.int64) << 4 * (place % 8)
        qzeros = words.astype(np.uint32).view(np.int32)
        assert np.array_equal(zero_points(qzeros, version), wanted), version
