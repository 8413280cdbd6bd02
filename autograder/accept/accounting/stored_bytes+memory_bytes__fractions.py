"""Exact fractions, rounded up at the end."""

from fractions import Fraction
from math import ceil

from gearworks.accounting import BLOCKS, parameter_count
from gearworks.errors import ModelError


def _check(dtype):
    if dtype not in BLOCKS:
        raise ModelError("cannot store that", f"{dtype!r} is unknown", "choose from BLOCKS")


def stored_bytes(count, dtype):
    _check(dtype)
    numbers, size = BLOCKS[dtype]
    return ceil(Fraction(count, numbers)) * size


def memory_bytes(shape, dtype, tokens=0, cache_dtype="float16"):
    values = shape.num_key_value_heads * shape.head_dim * shape.num_hidden_layers * tokens
    keys = values
    return {"kv_cache": stored_bytes(keys + values, cache_dtype),
            "weights": stored_bytes(parameter_count(shape), dtype)}
