"""Reads entry by entry into a list, and takes places from it until none is left."""

from gearworks.errors import FormatError
from gearworks.formats.safetensors import (DTYPES, MAX_DIMS, TensorInfo, is_text,
                                           parse_strict_json)


def require(condition, what, why):
    if not condition:
        raise FormatError(what, why, "is this the whole file?")


def read_header(data):
    require(len(data) >= 8, "no header", "there are no 8 bytes")
    header_size = sum(byte << 8 * place for place, byte in enumerate(bytes(data[:8])))
    require(header_size <= len(data) - 8, "no header", f"{header_size} bytes are not there")
    data_start = 8 + header_size
    entries = parse_strict_json(data[8:data_start])
    metadata = {}
    tensors = {}
    for name, entry in entries.items():
        if name == "__metadata__" and entry is None:
            continue
        if name == "__metadata__":
            require(type(entry) is dict, name, "it is no object")
            for key, value in entry.items():
                require(is_text(key) and is_text(value), name, "no strings")
            metadata = entry
            continue
        require(is_text(name), "a name", "it is no text")
        require(isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"},
                name, "its members")
        require(isinstance(entry["dtype"], str) and entry["dtype"] in DTYPES, name, "its dtype")
        require(isinstance(entry["shape"], list) and len(entry["shape"]) <= MAX_DIMS, name,
                "its shape")
        require(isinstance(entry["data_offsets"], list) and len(entry["data_offsets"]) == 2,
                name, "its offsets")
        nbytes = largest = DTYPES[entry["dtype"]].itemsize
        for size in entry["shape"]:
            require(type(size) is int and size >= 0, name, "its shape")
            nbytes *= size
            largest *= size or 1
        require(largest < 2**63, name, "its shape")
        for offset in entry["data_offsets"]:
            require(type(offset) is int and 0 <= offset <= len(data) - data_start, name,
                    "its offsets")
        begin, end = entry["data_offsets"]
        require(end - begin == nbytes, name, f"{nbytes} bytes were due")
        tensors[name] = TensorInfo(dtype=entry["dtype"], shape=tuple(entry["shape"]),
                                   start=begin + data_start, end=end + data_start)
    waiting = sorted(tensors.values(), key=lambda info: (info.start, info.end), reverse=True)
    at = data_start
    while waiting:
        info = waiting.pop()
        require(info.start == at, "the tensors", f"byte {at} begins none of them")
        at = info.end
    require(at == len(data), "the tensors", "bytes are left over")
    return tensors, metadata
