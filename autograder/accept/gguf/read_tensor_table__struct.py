"""A row at a time with struct."""

import math
import struct

from gearworks.errors import FormatError
from gearworks.formats.gguf import (BLOCK_FORMATS, MAX_TENSOR_DIMS, TensorRow, TensorType,
                                    ValueType, read_value, require_bytes)


def read_row(data, offset):
    name, at = read_value(data, offset, ValueType.STRING)

    def refuse(why):
        raise FormatError(f"cannot read tensor {name}", why, "convert the model again")

    require_bytes(data, at, 4, name)
    (n_dims,) = struct.unpack_from("<I", data, at)
    if not 0 < n_dims <= MAX_TENSOR_DIMS:
        refuse(f"{n_dims} dimensions")
    layout = f"<{n_dims}QIQ"
    require_bytes(data, at + 4, struct.calcsize(layout), name)
    *dims, kind, place = struct.unpack_from(layout, data, at + 4)
    values = math.prod(dims)
    if values == 0 or values >= 2**63:
        refuse(f"{values} values")
    if kind not in BLOCK_FORMATS:
        refuse(f"type {kind}")
    blocks, rest = divmod(dims[0], BLOCK_FORMATS[kind].size)
    if rest:
        refuse(f"rows of {dims[0]} values")
    nbytes = blocks * math.prod(dims[1:]) * BLOCK_FORMATS[kind].nbytes
    info = TensorRow(name, tuple(dims[::-1]), TensorType(kind), place, nbytes)
    return info, at + 4 + struct.calcsize(layout)


def read_tensor_table(data, offset, count):
    require_bytes(data, offset, 24 * count, "the table")
    infos = {}
    for _ in range(count):
        info, offset = read_row(data, offset)
        if infos.setdefault(info.name, info) is not info:
            raise FormatError(f"two tensors are named {info.name}", "names tell them apart",
                              "convert it again")
    return infos, offset
