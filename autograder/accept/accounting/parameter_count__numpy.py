"""Rows and columns of the matrices as an integer array."""

import numpy as np


def parameter_count(shape):
    D, F, d = shape.hidden_size, shape.intermediate_size, shape.head_dim
    q, kv = shape.num_attention_heads * d, shape.num_key_value_heads * d
    outputs = np.array([q, kv, kv, D, F, F, D], dtype=np.int64)
    inputs = np.array([D, D, D, q, D, D, F], dtype=np.int64)
    biased = np.array([shape.qkv_bias] * 3 + [shape.o_bias] + [shape.mlp_bias] * 3)
    norms = 2 * D + (2 * d if shape.qk_norm else 0)
    layers = shape.num_hidden_layers * (outputs @ inputs + outputs[biased].sum() + norms)
    tables = (1 if shape.tie_word_embeddings else 2) * shape.vocab_size * D
    return int(layers + tables + D)
