"""A prompt and one token; failures raised by pytest."""

import numpy as np
import pytest


def update_cache_test(update_cache):
    keys, values = np.zeros((2, 4, 2), np.float32), np.zeros((2, 4, 2), np.float32)
    tokens = np.arange(1, 13, dtype=np.float32).reshape(3, 2, 2)
    update_cache(keys, values, 0, tokens[:2], tokens[:2] * 10)
    seen = update_cache(keys, values, 2, tokens[2:], tokens[2:] * 10)
    for name, got, memory, right in (("keys", seen[0], keys, tokens),
                                     ("values", seen[1], values, tokens * 10)):
        right = right.transpose(1, 0, 2)
        if got.shape != right.shape or not (got == right).all():
            pytest.fail(f"{name}: the step sees {got}")
        if not (memory[:, :3] == right).all() or memory[:, 3].any():
            pytest.fail(f"{name}: the memory holds {memory}")
