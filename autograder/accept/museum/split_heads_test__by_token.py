"""A law: what a token gets does not depend on the others; and one token, written out."""

import numpy as np


def split_heads_test(split_heads):
    rows = np.random.default_rng().standard_normal((4, 24)).astype(np.float32)
    together = split_heads(rows, 4, 2)
    for token in range(4):
        alone = split_heads(rows[token:token + 1], 4, 2)
        for mine, whole in zip(alone, together):
            np.testing.assert_array_equal(mine[0], whole[token])
    flat = np.concatenate([part.reshape(-1) for part in split_heads(rows[:1], 4, 2)])
    np.testing.assert_array_equal(flat, rows[0])
