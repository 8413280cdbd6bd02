"""Whole blocks and a rest."""

from gearworks.accounting import BLOCKS, parameter_count
from gearworks.errors import ModelError


def stored_bytes(count, dtype):
    try:
        per_block, size = BLOCKS[dtype]
    except KeyError:
        raise ModelError(f"unknown storage type {dtype}", "it is not in BLOCKS",
                         "use one that is") from None
    blocks, rest = divmod(count, per_block)
    return (blocks + bool(rest)) * size


def memory_bytes(shape, dtype, tokens=0, cache_dtype="float16"):
    numbers = 0
    for _ in range(shape.num_hidden_layers):
        for _ in ("key", "value"):
            numbers += shape.num_key_value_heads * shape.head_dim
    return dict(weights=stored_bytes(parameter_count(shape), dtype),
                kv_cache=stored_bytes(numbers * tokens, cache_dtype))
