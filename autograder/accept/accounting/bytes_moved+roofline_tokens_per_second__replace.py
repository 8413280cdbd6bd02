"""What is read of an untied model is what a tied one has; the speed is the lower of two."""

from dataclasses import replace

from gearworks.accounting import forward_flops, memory_bytes


def bytes_moved(shape, dtype, batch=1, new_tokens=1, past_tokens=0, cache_dtype="float16"):
    one_table = replace(shape, tie_word_embeddings=True)
    return sum(memory_bytes(one_table, dtype, batch * (new_tokens + past_tokens),
                            cache_dtype).values())


def roofline_tokens_per_second(shape, dtype, *, bandwidth, flops_per_second, batch=1,
                               new_tokens=1, past_tokens=0, cache_dtype="float16"):
    tokens = batch * new_tokens
    by_memory = (tokens * bandwidth
                 / bytes_moved(shape, dtype, batch=batch, new_tokens=new_tokens,
                               past_tokens=past_tokens, cache_dtype=cache_dtype))
    by_arithmetic = (tokens * flops_per_second
                     / (batch * forward_flops(shape, new_tokens, past_tokens)))
    return float(min(by_memory, by_arithmetic))
