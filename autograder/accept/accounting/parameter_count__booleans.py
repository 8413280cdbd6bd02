"""One expression, with the switches as factors."""


def parameter_count(shape):
    s = shape
    q, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
    layer = (s.hidden_size * (2 * q + 2 * kv + 3 * s.intermediate_size + 2)
             + s.qkv_bias * (q + 2 * kv) + s.o_bias * s.hidden_size
             + s.mlp_bias * (2 * s.intermediate_size + s.hidden_size)
             + s.qk_norm * 2 * s.head_dim)
    return (s.num_hidden_layers * layer
            + s.hidden_size * (1 + s.vocab_size * (2 - s.tie_word_embeddings)))
