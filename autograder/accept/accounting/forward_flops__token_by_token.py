"""One token after the other."""


def _token(shape, visible):
    D, d = shape.hidden_size, shape.head_dim
    H, K = shape.num_attention_heads, shape.num_key_value_heads
    weights = D * (H + 2 * K) * d + H * d * D + 3 * D * shape.intermediate_size
    scores = values = H * d * visible
    return shape.num_hidden_layers * 2 * (weights + scores + values)


def forward_flops(shape, new_tokens, past_tokens=0, logit_rows=1):
    total = sum(_token(shape, past_tokens + i) for i in range(1, new_tokens + 1))
    return total + logit_rows * shape.vocab_size * 2 * shape.hidden_size
