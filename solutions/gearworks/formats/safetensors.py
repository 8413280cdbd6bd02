"""The safetensors format, read and written by hand.

A file is: 8 bytes, the header's size N (uint64, little-endian) | N bytes, a JSON object, padded
with spaces | the bytes of all tensors, end to end, row-major, little-endian.
The JSON object maps each name to
{"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, offsets counted from the end of
the header, and may map "__metadata__" to an object of strings. Tensors leave no gap and share
no byte.

A reader trusts nothing: `read_header` checks the whole header against the file's size before a
tensor is touched.
Left out on purpose: dtypes narrower than a byte, and the float8 kinds other than F8_E4M3 and
F8_E5M2. The index of a model in several files is read in shards.py.
Source: the format's description in the README of huggingface/safetensors.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.files import let_go, map_file, names_like, whole_file
from gearworks.formats.float8 import widen_e4m3, widen_e5m2

# What each dtype's bytes are in NumPy. BF16 and the float8 kinds have no NumPy dtype: these are
# their bit patterns.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"),
          "BF16": np.dtype("<u2"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"),
          "I16": np.dtype("<i2"), "I8": np.dtype("i1"), "U64": np.dtype("<u8"),
          "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
          "BOOL": np.dtype("?"), "C64": np.dtype("<c8"),
          "F8_E4M3": np.dtype("u1"), "F8_E5M2": np.dtype("u1"), "F8_E8M0": np.dtype("u1"),
          "F8_E4M3FNUZ": np.dtype("u1"), "F8_E5M2FNUZ": np.dtype("u1")}
BIT_PATTERNS = {"BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
UNREADABLE = {"F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}

_SURROGATE = re.compile("[\ud800-\udfff]")     # JSON can escape one alone; UTF-8 cannot hold it

MAX_HEADER_BYTES = 100_000_000      # the format's own limit
MAX_DIMS = 64                       # NumPy's limit
# what `read_tensor_into` widens at once: it stays in the cache of one core
PIECE_VALUES = 2**17

FETCH_AGAIN = "the file may be cut off or damaged: fetch it again"
WRITE_AGAIN = ("the program that wrote the file broke the format: fetch another copy, or have "
               "its writer save it again with the safetensors package")


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.
    dtype: a key of `DTYPES`; start, end: byte offsets from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def parse_strict_json(raw: bytes | memoryview, what: str = "the header") -> dict:
    """Parse UTF-8 bytes as one JSON object, and refuse what two readers could read differently.

    what: names the bytes in messages.
    Raises FormatError for bytes that are not UTF-8, for broken or too deeply nested JSON, for a
    value that is not an object, for NaN and Infinity, and for a key that occurs twice in an
    object.

    >>> parse_strict_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    """

    def unique(pairs: list[tuple[str, object]]) -> dict:
        members = {}
        for key, value in pairs:
            if key in members:
                raise ValueError(f"the key {key[:80]!r} occurs twice")
            members[key] = value
        return members

    def refuse(constant: str):
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(str(raw, "utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise FormatError(f"cannot read {what}", f"its byte {error.start} is not UTF-8",
                          FETCH_AGAIN) from error
    except RecursionError as error:
        raise FormatError(f"cannot read {what}", "its JSON is nested too deeply",
                          WRITE_AGAIN) from error
    except ValueError as error:
        raise FormatError(f"cannot read {what}", f"its JSON is broken: {error}",
                          FETCH_AGAIN) from error
    if not isinstance(value, dict):
        raise FormatError(f"cannot read {what}",
                          f"it is a JSON {type(value).__name__}, not an object", WRITE_AGAIN)
    return value


def read_header(data: bytes | memoryview) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Read and check the header of a whole safetensors file.

    data: all bytes of the file. Returns (tensors, metadata): a TensorInfo by name, in the
    header's order, with offsets from the beginning of the file, and the strings under
    "__metadata__" ({} if there are none, or null).

    Raises FormatError, naming the tensor, for everything that the format forbids: a header
    beyond `MAX_HEADER_BYTES` or the end of the file; JSON that `parse_strict_json` refuses;
    names or metadata that are not `is_text`; an entry with other members than dtype, shape and
    data_offsets; a dtype that is not in `DTYPES`; more than `MAX_DIMS` dimensions; sizes or
    offsets that are not integers >= 0 (in JSON true is no integer); a shape of 2⁶³ bytes or
    more, even where a dimension of 0 makes it none; offsets past the end of the file; a byte
    count that is not the shape's times the dtype's; tensors that overlap, leave a gap, or do
    not end where the file ends. Reserves memory for nothing but the header.

    >>> header = b'{"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}'
    >>> tensors, metadata = read_header(len(header).to_bytes(8, "little") + header + bytes(8))
    >>> tensors["w"]
    TensorInfo(dtype='F32', shape=(1, 2), start=64, end=72)
    """
    file_size = len(data)
    if file_size < 8:
        why = f"the file has {file_size} bytes, and the first 8 should hold the header's size"
        raise FormatError("cannot read the header's size at byte 0", why, FETCH_AGAIN)
    header_size = int.from_bytes(data[:8], "little")
    if header_size > MAX_HEADER_BYTES:
        why = (f"the first 8 bytes ask for a header of {header_size} bytes; the format allows "
               f"{MAX_HEADER_BYTES}")
        raise FormatError("cannot read the header at byte 8", why,
                          "this is hardly a safetensors file: give the path of one, or fetch "
                          "it again")
    data_start = 8 + header_size
    if data_start > file_size:
        why = (f"it should have {header_size} bytes, and the file ends "
               f"{data_start - file_size} bytes before that")
        raise FormatError("cannot read the header at byte 8", why, FETCH_AGAIN)

    header = parse_strict_json(data[8:data_start])
    metadata = header.pop("__metadata__", {})
    if metadata is None:
        metadata = {}
    if (not isinstance(metadata, dict)
        or not all(map(is_text, [*metadata, *metadata.values()]))):
        raise FormatError("cannot read __metadata__", "it is not an object of strings",
                          WRITE_AGAIN)

    tensors = {}
    for name, entry in header.items():
        where = f"cannot read the header's entry of tensor {name[:80]!r}"
        if not is_text(name):
            raise FormatError(where,
                              "its name holds half of a surrogate pair, which is no character",
                              WRITE_AGAIN)
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise FormatError(where,
                              "it must hold dtype, shape and data_offsets, and nothing else",
                              WRITE_AGAIN)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            why = f"dtype {str(dtype)[:80]!r} is none of {', '.join(DTYPES)}"
            raise FormatError(where, why, "use a copy of the model in one of these")
        if (not isinstance(shape, list) or len(shape) > MAX_DIMS
            or not all(map(is_size, shape))):
            why = f"its shape is not a list of at most {MAX_DIMS} integers in 0 .. 2**63 - 1"
            raise FormatError(where, why, WRITE_AGAIN)
        if (not isinstance(offsets, list) or len(offsets) != 2
            or not all(map(is_size, offsets))):
            raise FormatError(where, "its data_offsets are not two integers in 0 .. 2**63 - 1",
                              WRITE_AGAIN)
        itemsize = DTYPES[dtype].itemsize
        # A dimension of 0 must not hide the product of the others: no array library can hold
        # such a shape.
        if prod(max(size, 1) for size in shape) * itemsize >= 2**63:
            raise FormatError(where, f"shape {shape} of {dtype} overflows 64 bits", WRITE_AGAIN)
        begin, end = offsets
        if not begin <= end <= file_size - data_start:
            why = (f"data_offsets {begin} .. {end} do not lie in the {file_size - data_start} "
                   "bytes after the header")
            raise FormatError(where, why, FETCH_AGAIN)
        if end - begin != prod(shape) * itemsize:
            why = (f"shape {shape} of {dtype} takes {prod(shape) * itemsize} bytes, "
                   f"data_offsets give it {end - begin}")
            raise FormatError(where, why, WRITE_AGAIN)
        tensors[name] = TensorInfo(dtype, tuple(shape), data_start + begin, data_start + end)

    covered = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != covered:
            kind = ("overlaps the tensor before it" if info.start < covered
                    else "leaves a gap before it")
            why = (f"it starts at byte {info.start} of the file and {kind}, which ends at "
                   f"{covered}")
            raise FormatError(f"cannot place tensor {name[:80]!r}", why, WRITE_AGAIN)
        covered = info.end
    if covered != file_size:
        why = f"the last tensor ends at byte {covered}, the file at {file_size}"
        raise FormatError("cannot place the tensors", why, FETCH_AGAIN)
    return tensors, metadata


def is_text(value: object) -> bool:
    """Whether a value is a string that can be written as UTF-8.

    >>> is_text("weight"), is_text("\\ud800"), is_text(7)
    (True, False, False)
    """
    return isinstance(value, str) and not _SURROGATE.search(value)


def is_size(value: object) -> bool:
    """Whether a value is an integer, and no bool, from 0 to 2⁶³ - 1.

    >>> is_size(0), is_size(True), is_size(-1), is_size(2**63)
    (True, False, False, False)
    """
    return type(value) is int and 0 <= value < 2**63        # bool is a subclass of int


def read_tensor(data: bytes | memoryview, info: TensorInfo) -> np.ndarray:
    """Return one tensor of a file, in the shape that `info` names.

    data: all bytes of the file; info: from `read_header`. F32 comes back as a read-only view of
    `data`, without a copy. F16, BF16, F64, F8_E4M3 and F8_E5M2 come back as float32 in new
    memory; `widen_e4m3` and `widen_e5m2` do the last two. Integers, BOOL and C64 keep their
    dtype, as read-only views. Raises FormatError for the other float8 kinds.

    BF16 is the upper half of a float32: sign, 8 bits of exponent, 7 bits of fraction.

    >>> read_tensor(bytes([0xC0, 0x3F]), TensorInfo("BF16", (1,), 0, 2))
    array([1.5], dtype=float32)
    """
    if info.dtype in UNREADABLE:
        raise FormatError(f"cannot read the tensor at byte {info.start}",
                          f"dtype {info.dtype} is not supported",
                          "use a copy of the model in F32, F16 or BF16")
    values = np.frombuffer(memoryview(data).toreadonly(), DTYPES[info.dtype], prod(info.shape),
                           info.start)
    if info.dtype == "BF16":
        # Widen first: shifted as uint16, every bit would fall off the top.
        bits = values.astype(np.uint32)
        bits <<= 16
        values = bits.view(np.float32)
    elif info.dtype in ("F16", "F64"):
        values = values.astype(np.float32)
    elif info.dtype == "F8_E4M3":
        values = widen_e4m3(values)
    elif info.dtype == "F8_E5M2":
        values = widen_e5m2(values)
    return values.reshape(info.shape)


def read_tensor_into(out: np.ndarray, data: bytes | memoryview, info: TensorInfo) -> np.ndarray:
    """Read one tensor into given memory, in pieces, never holding it twice. Returns `out`.

    out: of the shape that `info` names, in any layout and of any dtype that can hold the
    values. Raises FormatError as `read_tensor` does, and ValueError for another shape.

    >>> read_tensor_into(np.zeros((1, 2), np.float32), bytes([0x80, 0x3F, 0, 0x40]),
    ...                  TensorInfo("BF16", (1, 2), 0, 4))
    array([[1., 2.]], dtype=float32)
    """
    if out.shape != info.shape:
        raise ValueError(f"a tensor of shape {info.shape} does not fit into memory of shape "
                         f"{out.shape}")
    if not info.shape or info.end == info.start:
        out[...] = read_tensor(data, info)
        return out
    rows, *row_shape = info.shape
    row_bytes = (info.end - info.start) // rows
    step = max(1, PIECE_VALUES // prod(row_shape))
    for row in range(0, rows, step):
        stop = min(row + step, rows)
        piece = TensorInfo(info.dtype, (stop - row, *row_shape), info.start + row * row_bytes,
                           info.start + stop * row_bytes)
        out[row:stop] = read_tensor(data, piece)
    return out


class SafetensorsFile:
    """A safetensors file, open for reading: a context manager, mapped, its header checked.

    path: where it is; tensors: TensorInfo by name; metadata: the strings under "__metadata__".

    >>> with SafetensorsFile.open("model.safetensors") as file:         # doctest: +SKIP
    ...     file.tensor("model.norm.weight").shape
    (576,)
    """

    def __init__(self, path: Path, data: memoryview):
        self.path = path
        self.tensors, self.metadata = read_header(data)
        self._data: memoryview | None = data

    @classmethod
    def open(cls, path: str | Path) -> "SafetensorsFile":
        """Map the file and check its header.
        Raises NotAvailableError or FormatError; both name the file."""
        try:
            return cls(Path(path), map_file(path))
        except FormatError as error:
            raise FormatError(f"cannot open {path}", f"{error.what}: {error.why}",
                              error.hint) from error

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """Return one tensor as `read_tensor` gives it, or in the memory of `out`, in place.

        Raises FormatError if the file has none of that name, ValueError if `out` has another
        shape.
        """
        if self._data is None:
            raise ValueError(f"{self.path} is closed")
        if name not in self.tensors:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                              "the file has no tensor of that name",
                              names_like(name, self.tensors))
        try:
            info = self.tensors[name]
            if out is None:
                return read_tensor(self._data, info)
            read_tensor_into(out, self._data, info)
            let_go(self._data, info.start, info.end)
            return out
        except FormatError as error:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}", error.why,
                              error.hint) from error

    def raw(self, name: str) -> np.ndarray:
        """One tensor as it is stored, a read-only view: BF16 and the float8 kinds in bits."""
        info = self.tensors[name]
        values = np.frombuffer(memoryview(self._data).toreadonly(), DTYPES[info.dtype],
                               prod(info.shape), info.start)
        return values.reshape(info.shape)

    def close(self) -> None:
        """Let go of the file.
        Views that `tensor` gave out stay valid: the mapping lives as long as they do."""
        self._data = None

    def __enter__(self) -> "SafetensorsFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that `write` asks for only when its turn comes.

    load() must give an array of this shape and dtype. kind: a key of `DTYPES` whose bits these
    are, such as F8_E4M3 of uint8; None for the dtype itself.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], np.ndarray]
    kind: str | None = None


def write(path: str | Path, tensors: Mapping[str, np.ndarray | LazyTensor],
          metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, tensor by tensor: one LazyTensor is in memory at a time.

    tensors: arrays or LazyTensors by name, of any NumPy dtype in `DTYPES`, in any memory layout
    and byte order; wide dtypes come first in the file, then in order of names, so that each
    tensor is aligned to its own item size.
    metadata: strings by name, or None.

    The file appears under its name only when it is complete; an older one stays untouched until
    then, and on any failure nothing is left behind. Raises NotAvailableError if the folder
    cannot be written to or the disk is full, ValueError for a dtype, name or metadata that the
    format cannot hold and for a load() that breaks its promise.

    >>> write("two.safetensors", {"w": np.zeros(3, np.float32)})          # doctest: +SKIP
    """
    path = Path(path)
    names = sorted(tensors, key=lambda name: (-np.dtype(tensors[name].dtype).itemsize, name))
    header: dict[str, dict] = {}
    if metadata is not None:
        if not all(map(is_text, [*metadata, *metadata.values()])):
            raise ValueError("metadata must be strings by name")
        header["__metadata__"] = dict(metadata)
    offset = 0
    for name in names:
        if not is_text(name) or name == "__metadata__":
            raise ValueError(f"{name!r} cannot be the name of a tensor")
        shape, dtype = tensors[name].shape, np.dtype(tensors[name].dtype)
        begin, offset = offset, offset + prod(shape) * dtype.itemsize
        kind = getattr(tensors[name], "kind", None)
        header[name] = {"dtype": kind or _dtype_name(dtype),
                        "shape": [int(size) for size in shape],
                        "data_offsets": [begin, offset]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)

    with whole_file(path, offset + len(text)) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(_bytes_of(name, tensors[name]))


def _dtype_name(dtype: np.dtype) -> str:
    little_endian = dtype.newbyteorder("<")
    for name, stored in DTYPES.items():
        if stored == little_endian and name not in BIT_PATTERNS:
            return name
    raise ValueError(f"safetensors has no dtype for NumPy's {dtype}")


def _bytes_of(name: str, tensor: np.ndarray | LazyTensor) -> memoryview:
    array = tensor.load() if isinstance(tensor, LazyTensor) else tensor
    if array.shape != tuple(tensor.shape) or array.dtype != tensor.dtype:
        raise ValueError(f"tensor {name!r} was announced as {np.dtype(tensor.dtype)} "
                         f"{tuple(tensor.shape)} and came as {array.dtype} {array.shape}")
    array = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return array.reshape(-1).view(np.uint8).data
