"""The shape of every array, by name; then their products."""

from math import prod


def _arrays(shape):
    D, F, V, d = shape.hidden_size, shape.intermediate_size, shape.vocab_size, shape.head_dim
    H, K = shape.num_attention_heads, shape.num_key_value_heads
    yield V, D
    if not shape.tie_word_embeddings:
        yield V, D
    for _ in range(shape.num_hidden_layers):
        projections = {"q": (H * d, D), "k": (K * d, D), "v": (K * d, D), "o": (D, H * d)}
        mlp = {"gate": (F, D), "up": (F, D), "down": (D, F)}
        yield from projections.values()
        yield from mlp.values()
        for name, (out, _) in projections.items():
            if shape.o_bias if name == "o" else shape.qkv_bias:
                yield (out,)
        if shape.mlp_bias:
            yield from ((out,) for out, _ in mlp.values())
        if shape.qk_norm:
            yield (d,)
            yield (d,)
        yield (D,)
        yield (D,)
    yield (D,)


def parameter_count(shape):
    return sum(map(prod, _arrays(shape)))
