"""Rounded up by adding almost a block; the cache as the size of an array."""

from math import prod

from gearworks.accounting import BLOCKS, parameter_count
from gearworks.errors import ModelError


def stored_bytes(count, dtype):
    if dtype in BLOCKS:
        block = BLOCKS[dtype]
        return (count + block[0] - 1) // block[0] * block[1]
    raise ModelError("no such storage type", dtype, "see BLOCKS")


def memory_bytes(shape, dtype, tokens=0, cache_dtype="float16"):
    keys = (shape.num_hidden_layers, shape.num_key_value_heads, tokens, shape.head_dim)
    sizes = {"weights": (parameter_count(shape), dtype),
             "kv_cache": (2 * prod(keys), cache_dtype)}
    return {name: stored_bytes(*size) for name, size in sizes.items()}
