"""GGUF files, written: settings and vocabulary first, then tensors that come one by one.

The layout is told in `gguf`. Metadata that another file has can be taken over byte by byte, so
that no type of a value changes on the way.
Left out on purpose: split files, and arrays of arrays.
Source: docs/gguf.md in the ggml repository.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gearworks.formats.files import map_file, whole_file
from gearworks.formats.gguf import (
    BLOCK_FORMATS, HEADER_BYTES, NUMBERS, TensorType, ValueType, read_value)

ALIGNMENT = 32


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor whose bytes are asked for when its turn comes.
    shape: as in NumPy; load() gives the bytes of its blocks, uint8 of any shape."""

    type: TensorType
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        block = BLOCK_FORMATS[self.type]
        return prod(self.shape) // block.size * block.nbytes


def encode_value(value: object) -> bytes:
    """A metadata value as the file keeps it, its type in front.

    Python's int is stored as uint32 and its float as float32; a NumPy array, or a list of
    strings, as an array. Raises ValueError for anything else.

    >>> encode_value("ok")[4:]
    b'\\x02\\x00\\x00\\x00\\x00\\x00\\x00\\x00ok'
    >>> encode_value(7), encode_value(True)
    (b'\\x04\\x00\\x00\\x00\\x07\\x00\\x00\\x00', b'\\x07\\x00\\x00\\x00\\x01')
    """
    if isinstance(value, np.ndarray):
        kind = next((kind for kind, dtype in NUMBERS.items() if dtype == value.dtype), None)
        if kind is not None:
            return (_number(ValueType.ARRAY) + _number(kind) + _count(value.size)
                    + value.tobytes())
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        return (_number(ValueType.ARRAY) + _number(ValueType.STRING) + _count(len(value))
                + b"".join(map(_text, value)))
    elif isinstance(value, str):
        return _number(ValueType.STRING) + _text(value)
    elif isinstance(value, bool):
        return _number(ValueType.BOOL) + bytes([value])
    elif isinstance(value, int):
        return _number(ValueType.UINT32) + _number(value)
    elif isinstance(value, float):
        return _number(ValueType.FLOAT32) + np.array(value, "<f4").tobytes()
    raise ValueError(f"metadata cannot hold {value!r:.80}")


def encoded_metadata(path: Path) -> dict[str, bytes]:
    """The metadata of a file as it is stored: for each key the value with its type in front.
    path: of a file that `GGUFFile.open` has accepted."""
    data = map_file(path)
    count, _ = read_value(data, 16, ValueType.UINT64)
    encoded, at = {}, HEADER_BYTES
    for _ in range(count):
        key, start = read_value(data, at, ValueType.STRING)
        kind, at = read_value(data, start, ValueType.UINT32)
        _, at = read_value(data, at, kind)
        encoded[key] = bytes(data[start:at])
    return encoded


def write_gguf(path: Path, metadata: Mapping[str, bytes],
               tensors: Mapping[str, TensorToWrite]) -> None:
    """Write a GGUF file of version 3, tensor by tensor, in the order of the mapping.

    metadata: encoded values by key; the alignment is the usual one, and may not be among them.
    The file appears under its name only when it is complete; on any failure nothing is left
    behind. Raises NotAvailableError if the folder cannot be written to or the disk is full,
    ValueError for a tensor that is not whole blocks or a load() that breaks its promise.
    """
    if "general.alignment" in metadata:
        raise ValueError("tensors are aligned to 32 bytes here, whatever another file says")
    table, offset = b"", 0
    for name, tensor in tensors.items():
        if tensor.shape[-1] % BLOCK_FORMATS[tensor.type].size:
            raise ValueError(f"rows of {tensor.shape[-1]} are not whole {tensor.type.name}")
        table += (_text(name) + _number(len(tensor.shape))
                  + b"".join(map(_count, reversed(tensor.shape)))
                  + _number(tensor.type) + _count(offset))
        offset += _aligned(tensor.nbytes)
    head = b"GGUF" + _number(3) + _count(len(tensors)) + _count(len(metadata))
    head += b"".join(_text(key) + value for key, value in metadata.items()) + table
    head += bytes(_aligned(len(head)) - len(head))
    with whole_file(path, len(head) + offset) as file:
        file.write(head)
        for name, tensor in tensors.items():
            raw = np.ascontiguousarray(tensor.load()).reshape(-1).view(np.uint8)
            if raw.size != tensor.nbytes:
                raise ValueError(f"tensor {name!r} was announced with {tensor.nbytes} bytes, "
                                 f"and came with {raw.size}")
            file.write(raw.data)
            file.write(bytes(_aligned(raw.size) - raw.size))


def _number(value: int) -> bytes:
    return int(value).to_bytes(4, "little")


def _count(value: int) -> bytes:
    return int(value).to_bytes(8, "little")


def _text(content: str) -> bytes:
    raw = content.encode("utf-8")
    return _count(len(raw)) + raw


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
