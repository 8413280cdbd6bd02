"""The two times, and an if."""

from gearworks.accounting import forward_flops, parameter_count, stored_bytes


def bytes_moved(shape, dtype, batch=1, new_tokens=1, past_tokens=0, cache_dtype="float16"):
    table = shape.vocab_size * shape.hidden_size
    weights = parameter_count(shape) - (0 if shape.tie_word_embeddings else table)
    per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    read, written = batch * past_tokens * per_token, batch * new_tokens * per_token
    return stored_bytes(weights, dtype) + stored_bytes(read + written, cache_dtype)


def roofline_tokens_per_second(shape, dtype, *, bandwidth, flops_per_second, batch=1,
                               new_tokens=1, past_tokens=0, cache_dtype="float16"):
    moving = bytes_moved(shape, dtype, batch, new_tokens, past_tokens, cache_dtype) / bandwidth
    computing = batch * forward_flops(shape, new_tokens, past_tokens) / flops_per_second
    if moving > computing:
        return batch * new_tokens / moving
    return batch * new_tokens / computing
