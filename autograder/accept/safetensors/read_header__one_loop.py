"""Takes a tensor at a time, in the order of the bytes."""

import json
from math import prod

from gearworks.errors import FormatError
from gearworks.formats.safetensors import (DTYPES, MAX_DIMS, MAX_HEADER_BYTES, TensorInfo,
                                           is_text, parse_strict_json)


def read_header(data):
    data = memoryview(data)

    def refuse(name=""):
        raise FormatError(f"cannot read {name or 'the header'}", "the format forbids it",
                          "fetch another")

    def are_sizes(values):
        return isinstance(values, list) and all(
            json.dumps(value).isdigit() for value in values)

    size = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
        refuse()
    header = parse_strict_json(data[8:8 + size])
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        refuse("__metadata__")
    for value in (*metadata, *metadata.values()):
        if not is_text(value):
            refuse("__metadata__")
    tensors = {}
    for name, entry in header.items():
        if not is_text(name) or not isinstance(entry, dict):
            refuse(name)
        if sorted(entry) != ["data_offsets", "dtype", "shape"]:
            refuse(name)
        dtype, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in DTYPES or not are_sizes(shape):
            refuse(name)
        if not are_sizes(offsets) or len(offsets) != 2:
            refuse(name)
        if len(shape) > MAX_DIMS or prod(size or 1 for size in shape) >= (
                2**63 // DTYPES[dtype].itemsize):
            refuse(name)
        if prod(shape) * DTYPES[dtype].itemsize != offsets[1] - offsets[0]:
            refuse(name)
        start, end = (8 + size + offset for offset in offsets)
        if not start <= end <= len(data):
            refuse(name)
        tensors[name] = TensorInfo(dtype, tuple(shape), start, end)
    place = 8 + size
    for name in sorted(tensors, key=lambda name: (tensors[name].start, tensors[name].end)):
        if tensors[name].start != place:
            refuse(name)
        place = tensors[name].end
    if place != len(data):
        refuse()
    return tensors, metadata
