"""Sequence by sequence, key head by key head: each run of numbers is stored by itself."""

from gearworks.accounting import forward_flops, parameter_count, stored_bytes


def bytes_moved(shape, dtype, batch=1, new_tokens=1, past_tokens=0, cache_dtype="float16"):
    moved = stored_bytes(parameter_count(shape), dtype)
    if not shape.tie_word_embeddings:
        moved -= stored_bytes(shape.vocab_size * shape.hidden_size, dtype)
    heads = 2 * shape.num_hidden_layers * shape.num_key_value_heads
    read = past_tokens * heads * stored_bytes(shape.head_dim, cache_dtype)
    written = new_tokens * heads * stored_bytes(shape.head_dim, cache_dtype)
    return moved + batch * (read + written)


def roofline_tokens_per_second(shape, dtype, *, bandwidth, flops_per_second, batch=1,
                               new_tokens=1, past_tokens=0, cache_dtype="float16"):
    seconds = max(bytes_moved(shape, dtype, batch, new_tokens, past_tokens, cache_dtype)
                  / bandwidth,
                  batch * forward_flops(shape, new_tokens, past_tokens) / flops_per_second)
    return batch * new_tokens / seconds
