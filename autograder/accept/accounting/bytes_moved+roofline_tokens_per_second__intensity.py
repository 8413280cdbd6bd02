"""The roofline as it is drawn: attainable FLOPs a second from the arithmetic intensity."""

from gearworks.accounting import forward_flops, memory_bytes, parameter_count, stored_bytes


def bytes_moved(shape, dtype, batch=1, new_tokens=1, past_tokens=0, cache_dtype="float16"):
    parameters = parameter_count(shape)
    if not shape.tie_word_embeddings:
        parameters -= shape.vocab_size * shape.hidden_size
    read = memory_bytes(shape, dtype, tokens=batch * past_tokens + batch * new_tokens,
                        cache_dtype=cache_dtype)
    return stored_bytes(parameters, dtype) + read["kv_cache"]


def roofline_tokens_per_second(shape, dtype, *, bandwidth, flops_per_second, batch=1,
                               new_tokens=1, past_tokens=0, cache_dtype="float16"):
    per_token = forward_flops(shape, new_tokens, past_tokens) / new_tokens
    intensity = (batch * new_tokens * per_token
                 / bytes_moved(shape, dtype, batch, new_tokens, past_tokens, cache_dtype))
    return min(flops_per_second, bandwidth * intensity) / per_token
