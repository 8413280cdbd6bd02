"""Reads all rows first, and checks them afterwards."""

from math import prod

from gearworks.errors import FormatError
from gearworks.formats.gguf import (BLOCK_FORMATS, MAX_TENSOR_DIMS, TensorRow, TensorType,
                                    ValueType, read_value, require_bytes)


def read_tensor_table(data, offset, count):
    require_bytes(data, offset, 8 * count, "the names")
    rows = []
    at = offset
    for _ in range(count):
        row = []
        name, at = read_value(data, at, ValueType.STRING)
        n_dims, at = read_value(data, at, ValueType.UINT32)
        if n_dims not in range(1, MAX_TENSOR_DIMS + 1):
            raise FormatError(f"tensor {name}", f"it has {n_dims} dimensions",
                              "convert it again")
        for kind in [ValueType.UINT64] * n_dims + [ValueType.UINT32, ValueType.UINT64]:
            value, at = read_value(data, at, kind)
            row.append(value)
        rows.append((name, tuple(reversed(row[:-2])), row[-2], row[-1]))
    problems = [f"{name}: {shape}, type {kind}" for name, shape, kind, _ in rows
                if min(shape) < 1 or prod(shape) > 2**63 - 1
                or kind not in BLOCK_FORMATS or shape[-1] % BLOCK_FORMATS[kind].size]
    names = [row[0] for row in rows]
    problems += [f"{name} occurs twice" for name in {*names} if names.count(name) > 1]
    if problems:
        raise FormatError("the tensor table is wrong", "; ".join(problems), "convert it again")
    return {name: TensorRow(name, shape, TensorType(kind), place,
                            prod(shape) * BLOCK_FORMATS[kind].nbytes
                            // BLOCK_FORMATS[kind].size)
            for name, shape, kind, place in rows}, at
