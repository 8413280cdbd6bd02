"""Counts with NumPy how often each byte of the data is claimed: exactly once is right."""

from math import prod

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.safetensors import (DTYPES, MAX_DIMS, MAX_HEADER_BYTES, TensorInfo,
                                           is_text, parse_strict_json)

HINT = "fetch the file again"


def entry_of(name, entry, data_start, room):
    try:
        dtype, shape, (begin,
                       end) = entry.pop("dtype"), entry.pop("shape"), entry.pop("data_offsets")
        itemsize = DTYPES[dtype].itemsize
        sizes = [*shape, begin, end]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FormatError(f"bad entry {name}", "a member is missing, or of another type",
                          HINT) from None
    if entry or not isinstance(shape, list) or not is_text(name):
        raise FormatError(f"bad entry {name}", "there are other members", HINT)
    if any(type(size) is not int or size < 0 for size in sizes):
        raise FormatError(f"bad entry {name}", f"{sizes} are no sizes", HINT)
    if len(shape) > MAX_DIMS or itemsize * prod(max(1, size) for size in shape) > 2**63 - 1:
        raise FormatError(f"bad entry {name}", "no array has this shape", HINT)
    if begin > end or end > room or end - begin != prod(shape) * itemsize:
        raise FormatError(f"bad entry {name}", f"{begin} .. {end} is not its place", HINT)
    return TensorInfo(dtype, tuple(shape), begin + data_start, end + data_start)


def read_header(data):
    data = memoryview(data)
    data_start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or data_start > len(data) or data_start > MAX_HEADER_BYTES + 8:
        raise FormatError("bad header", "its size is absurd", HINT)
    header = parse_strict_json(data[8:data_start])
    metadata = header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if type(metadata) is not dict or not all(
            is_text(part) for pair in metadata.items() for part in pair):
        raise FormatError("bad metadata", "they are no strings", HINT)
    tensors = {name: entry_of(name, entry, data_start, len(data) - data_start)
               for name, entry in header.items()}
    claims = np.zeros(len(data) - data_start, np.uint16)
    for info in tensors.values():
        claims[info.start - data_start:info.end - data_start] += 1
    if (claims != 1).any():
        raise FormatError("bad places", "a byte is claimed twice, or by nobody", HINT)
    return tensors, metadata
