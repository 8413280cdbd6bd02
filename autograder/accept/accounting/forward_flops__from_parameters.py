"""Two FLOPs for each parameter that multiplies, taken from the number of parameters;
attention on top."""

from dataclasses import replace

from gearworks.accounting import parameter_count


def forward_flops(shape, new_tokens, past_tokens=0, logit_rows=1):
    D, L = shape.hidden_size, shape.num_hidden_layers
    bare = replace(shape, tie_word_embeddings=True, qkv_bias=False, o_bias=False,
                   mlp_bias=False, qk_norm=False)
    matrices = parameter_count(bare) - shape.vocab_size * D - (2 * L + 1) * D
    sees = sum(range(past_tokens + 1, past_tokens + new_tokens + 1))
    return (2
            * (matrices * new_tokens + 2 * L * shape.num_attention_heads * shape.head_dim * sees
               + shape.vocab_size * D * logit_rows))
