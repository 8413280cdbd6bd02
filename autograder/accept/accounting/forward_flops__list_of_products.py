"""Every product as (rows, inner, columns)."""


def forward_flops(shape, new_tokens, past_tokens=0, logit_rows=1):
    D, F, d, T = shape.hidden_size, shape.intermediate_size, shape.head_dim, new_tokens
    H, K = shape.num_attention_heads, shape.num_key_value_heads
    products = [(T, D, H * d), (T, D, K * d), (T, D, K * d), (T, H * d, D), (T, D, F),
                (T, D, F), (T, F, D)]
    layer = sum(2 * rows * inner * columns for rows, inner, columns in products)
    for query in range(T):
        visible = past_tokens + query + 1
        layer += H * (2 * d * visible + 2 * visible * d)
    return shape.num_hidden_layers * layer + 2 * logit_rows * D * shape.vocab_size
