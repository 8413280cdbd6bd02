"""The tables of a GGUF file whose tensors are in types that the engine does not read.

`formats.gguf` refuses such a file at the first of them, since it cannot say how many bytes they
take. Here the places of the tensors say it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gearworks.errors import FormatError
from gearworks.formats.files import map_file
from gearworks.formats.gguf import (
    BLOCK_FORMATS, FETCH_AGAIN, HEADER_BYTES, MAX_TENSOR_DIMS, WRITE_AGAIN, TensorType,
    ValueType, read_metadata, read_value)

Row = tuple[str, str, tuple[int, ...], int]             # name, type, shape, bytes


def read_tables(path: Path) -> tuple[int, Mapping[str, Any], list[Row]]:
    """The version, the metadata and the tensors of a GGUF file, whatever their types.

    A tensor's bytes go to where the next one begins, so they count what pads it. Raises
    NotAvailableError or FormatError for a file that cannot be read.
    """
    data = map_file(path)
    version, at = read_value(data, 4, ValueType.UINT32)
    count, at = read_value(data, at, ValueType.UINT64)
    entries, _ = read_value(data, at, ValueType.UINT64)
    metadata, at = read_metadata(data, HEADER_BYTES, entries)
    rows = []
    for _ in range(count):
        name, at = read_value(data, at, ValueType.STRING)
        n_dims, at = read_value(data, at, ValueType.UINT32)
        if n_dims > MAX_TENSOR_DIMS:
            raise FormatError(f"cannot read the entry of tensor {name[:80]!r}",
                              f"it has {n_dims} dimensions", WRITE_AGAIN)
        dims = []
        for _ in range(n_dims):
            dim, at = read_value(data, at, ValueType.UINT64)
            dims.append(dim)
        kind, at = read_value(data, at, ValueType.UINT32)
        offset, at = read_value(data, at, ValueType.UINT64)
        rows.append((name, kind, tuple(reversed(dims)), offset))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise FormatError(f"cannot open {path}", "general.alignment is no size", WRITE_AGAIN)
    ends = sorted(offset for *_, offset in rows)[1:]
    ends.append(len(data) - -(-at // alignment) * alignment)
    sizes = {}
    for row, end in zip(sorted(rows, key=lambda row: row[3]), ends):
        sizes[row[0]] = end - row[3]
        if end < row[3]:
            raise FormatError(f"cannot open {path}", f"tensor {row[0][:80]!r} lies behind its "
                              "end", FETCH_AGAIN)
    return version, metadata, [(name, _type_name(kind), shape, sizes[name])
                               for name, kind, shape, _ in rows]


def has_unread_types(rows: list[Row]) -> bool:
    """Whether some tensors are in types that the engine does not read."""
    read = {kind.name for kind in BLOCK_FORMATS}
    return any(kind not in read for _, kind, *_ in rows)


def _type_name(kind: int) -> str:
    return TensorType(kind).name if kind in list(TensorType) else f"type {kind}"
