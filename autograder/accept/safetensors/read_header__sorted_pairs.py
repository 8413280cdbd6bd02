"""All places in one sorted list, whose neighbours must touch."""

import itertools
import struct
from math import prod

from gearworks.errors import FormatError
from gearworks.formats.safetensors import (DTYPES, MAX_DIMS, MAX_HEADER_BYTES, TensorInfo,
                                           is_text, parse_strict_json)


def whole_number(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_header(data):
    def refuse(why):
        raise FormatError("cannot read this safetensors file", why, "fetch it again")

    if len(data) < 8:
        refuse("it is shorter than the size of its header")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        refuse(f"its header of {size} bytes does not fit")
    start, room = size + 8, len(data) - size - 8
    header = parse_strict_json(bytes(data[8:start]))
    metadata = header.pop("__metadata__", {})
    if metadata is None:
        metadata = {}
    if (not isinstance(metadata, dict)
            or not all(map(is_text, metadata)) or not all(map(is_text, metadata.values()))):
        refuse("__metadata__ must map strings to strings")
    tensors = {}
    for name, fields in header.items():
        if not is_text(name):
            refuse("a name is no text")
        if not isinstance(fields, dict) or sorted(fields) != ["data_offsets", "dtype", "shape"]:
            refuse(f"{name} has other members")
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if type(dtype) is not str or dtype not in DTYPES:
            refuse(f"{name} has the dtype {dtype}")
        if type(shape) is not list or type(offsets) is not list or len(offsets) != 2:
            refuse(f"{name} has no shape, or no two offsets")
        if not all(map(whole_number, shape + offsets)):
            refuse(f"{name} has a size that is no integer")
        begin, end = offsets
        cells = prod(size for size in shape if size > 0)
        if len(shape) > MAX_DIMS or cells * DTYPES[dtype].itemsize >= 2**63:
            refuse(f"{name} has a shape that no array can have")
        if end > room or end - begin != prod(shape) * DTYPES[dtype].itemsize:
            refuse(f"{name} does not have the bytes of its shape")
        tensors[name] = TensorInfo(dtype, tuple(shape), start + begin, start + end)
    places = sorted((info.start, info.end) for info in tensors.values())
    for (_, end), (begin, _) in itertools.pairwise([(0, start), *places,
                                                    (len(data), len(data))]):
        if begin != end:
            refuse(f"byte {min(begin, end)} belongs to two tensors, or to none")
    return tensors, metadata
