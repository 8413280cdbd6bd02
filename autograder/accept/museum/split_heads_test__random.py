"""Random numbers, each one looked up where it must be."""

import numpy as np


def split_heads_test(split_heads):
    rng = np.random.default_rng(4)
    T, H, K, d = 5, 6, 3, 7
    qkv = rng.standard_normal((T, (H + 2 * K) * d)).astype(np.float32)
    everything = np.concatenate(split_heads(qkv, H, K), axis=1)
    for token in range(T):
        for head in range(H + 2 * K):
            for place in range(d):
                assert everything[token, head,
                                  place] == qkv[token, head * d + place], (token, head, place)
