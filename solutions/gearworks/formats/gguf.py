"""The GGUF format, read by hand: a container for a model's settings, vocabulary and tensors.

A file is, little-endian throughout:
    "GGUF" | version (uint32) | number of tensors (uint64) | number of metadata entries (uint64)
    metadata: key (string), type of the value (uint32, `ValueType`), value
    tensor table: name (string), number of dimensions (uint32), each dimension (uint64),
        type (uint32, `TensorType`), offset (uint64)
    padding | data section, from the next multiple of the alignment; the table's offsets count
        from its beginning.
A string is its length in bytes (uint64), then UTF-8 without a final zero. Alignment is the
metadata entry "general.alignment", 32 if there is none. GGUF lists dimensions fastest first:
NumPy's shape backwards.

GGUF is a container; quantization is what `TensorType` says of a single tensor. Quantized values
come in blocks of consecutive values of a row that share a scale, each block a run of bytes
(`BLOCK_FORMATS`). Three formats are read here, the others in `gguf_blocks`, `gguf_k_quants` and
`gguf_i_quants`.

Shapes: n blocks. Left out on purpose: version 1, big-endian files, the I-quants of fewer than
four bits, and ternary blocks. A model in several files is `gguf_parts`' subject; `gguf_writer`
writes such files.
Source: docs/gguf.md in the ggml repository; block layouts as in ggml-common.h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.files import let_go, map_file, names_like
from gearworks.formats.gguf_blocks import (dequantize_bf16, dequantize_f16, dequantize_f32,
                                           dequantize_mxfp4, dequantize_q5_0,
                                           dequantize_q5_1)
from gearworks.formats.gguf_i_quants import dequantize_iq4_nl, dequantize_iq4_xs
from gearworks.formats.gguf_k_quants import (
    dequantize_q2_k, dequantize_q3_k, dequantize_q4_k, dequantize_q5_k, dequantize_q6_k,
)

FETCH_AGAIN = "the file may be cut off or damaged: fetch it again"
WRITE_AGAIN = ("the program that wrote the file broke the format: fetch another copy, or "
               "convert the model again with llama.cpp's convert_hf_to_gguf.py")

MAX_TENSOR_DIMS = 4         # as in ggml
MAX_ARRAY_DEPTH = 8         # real files nest no arrays; each level costs a stack frame
# real strings, chat templates among them, have some KB; decoding reserves memory at once
MAX_STRING_BYTES = 2**24
HEADER_BYTES = 24           # magic, version, two counts


class ValueType(IntEnum):
    """The type of a metadata value, as the file numbers it."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


NUMBERS = {ValueType.UINT8: np.dtype("u1"), ValueType.INT8: np.dtype("i1"),
           ValueType.UINT16: np.dtype("<u2"), ValueType.INT16: np.dtype("<i2"),
           ValueType.UINT32: np.dtype("<u4"), ValueType.INT32: np.dtype("<i4"),
           ValueType.FLOAT32: np.dtype("<f4"), ValueType.UINT64: np.dtype("<u8"),
           ValueType.INT64: np.dtype("<i8"), ValueType.FLOAT64: np.dtype("<f8"),
           ValueType.BOOL: np.dtype("?")}

# The fewest bytes that one value takes: an empty string is its length, an empty array its type
# and its count.
SMALLEST = {**{kind: dtype.itemsize for kind, dtype in NUMBERS.items()}, ValueType.STRING: 8,
            ValueType.ARRAY: 12}


class TensorType(IntEnum):
    """How a tensor's values are stored, as the file numbers it.
    Only those in `BLOCK_FORMATS` can be read."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


@dataclass(frozen=True)
class TensorRow:
    """One row of the tensor table.
    shape: as in NumPy, slowest first; offset: bytes from the data section's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int


def require_bytes(data: bytes | memoryview, offset: int, nbytes: int, what: str) -> None:
    """Raise FormatError unless `nbytes` bytes, called `what`, follow `offset` in `data`."""
    if nbytes > len(data) - offset:
        why = f"it takes {nbytes} bytes, and only {max(len(data) - offset, 0)} follow"
        raise FormatError(f"cannot read {what} at byte {offset}", why, FETCH_AGAIN)


def read_value(data: bytes | memoryview, offset: int, value_type: int,
               depth: int = 0) -> tuple[object, int]:
    """Read one metadata value, and say where the next thing begins.

    data: bytes of the file; offset: where the value starts; value_type: a `ValueType`. Returns
    (value, next offset). A number comes as int, float or bool, a string as str. An array is the
    type of its items (uint32), their number (uint64), then the items: numbers come as one NumPy
    array of the stored dtype, in its own memory; strings and arrays come as a list. depth: how
    many arrays enclose this value; more than `MAX_ARRAY_DEPTH` are refused.

    Raises FormatError, with the offset, for a value that does not end inside `data` (checked
    before memory is reserved: a file may claim 2**63 items), a type that is not in `ValueType`,
    a string that is longer than `MAX_STRING_BYTES` or not UTF-8, and a bool other than 0 or 1.
    Reads the 250,000 tokens of a vocabulary in well under a second.

    >>> read_value(b"\\x02\\0\\0\\0\\0\\0\\0\\0ok...", 0, ValueType.STRING)
    ('ok', 10)
    """
    if value_type == ValueType.STRING:
        start = offset + 8
        require_bytes(data, offset, 8, "the length of a string")
        end = start + int.from_bytes(data[offset:start], "little")
        require_bytes(data, start, end - start, "a string")
        if end - start > MAX_STRING_BYTES:
            why = (f"it claims {end - start} bytes, and more than {MAX_STRING_BYTES} are not "
                   "allowed")
            raise FormatError(f"cannot read the string at byte {start}", why, FETCH_AGAIN)
        try:
            return str(data[start:end], "utf-8"), end
        except UnicodeDecodeError as error:
            why = f"its byte {error.start} is not UTF-8"
            raise FormatError(f"cannot read the string at byte {start}", why,
                              FETCH_AGAIN) from error

    if value_type in NUMBERS:
        numbers, end = read_numbers(data, offset, value_type, 1)
        return numbers.item(), end

    if value_type != ValueType.ARRAY:
        why = f"its type is {value_type}; types go from 0 to {max(ValueType)}"
        raise FormatError(f"cannot read the value at byte {offset}", why, FETCH_AGAIN)
    if depth == MAX_ARRAY_DEPTH:
        raise FormatError(f"cannot read the array at byte {offset}",
                          f"{depth} arrays enclose it", WRITE_AGAIN)
    item_type, at = read_value(data, offset, ValueType.UINT32)
    count, at = read_value(data, at, ValueType.UINT64)
    if item_type not in SMALLEST:
        why = f"its items are of type {item_type}; types go from 0 to {max(ValueType)}"
        raise FormatError(f"cannot read the array at byte {offset}", why, FETCH_AGAIN)
    require_bytes(data, at, count * SMALLEST[item_type], f"an array of {count} items")
    if item_type in NUMBERS:
        return read_numbers(data, at, item_type, count)
    items = []
    for _ in range(count):
        item, at = read_value(data, at, item_type, depth + 1)
        items.append(item)
    return items, at


def read_numbers(data: bytes | memoryview, offset: int, value_type: int,
                 count: int) -> tuple[np.ndarray, int]:
    """Read `count` numbers of one `ValueType` at once.
    Returns ((count,) of the stored dtype, own memory; next offset).

    Raises FormatError where they do not end inside `data`, and for a bool other than 0 or 1.

    >>> read_numbers(b"\\x07\\0\\x08\\0", 0, ValueType.UINT16, 2)
    (array([7, 8], dtype=uint16), 4)
    """
    dtype = NUMBERS[value_type]
    end = offset + count * dtype.itemsize
    require_bytes(data, offset, end - offset, "a number" if count == 1 else f"{count} numbers")
    if (value_type == ValueType.BOOL and count
        and np.frombuffer(data, np.uint8, count, offset).max() > 1):
        raise FormatError(f"cannot read the bool at byte {offset}", "it is neither 0 nor 1",
                          FETCH_AGAIN)
    return np.frombuffer(data, dtype, count, offset).copy(), end


def read_metadata(data: bytes | memoryview, offset: int,
                  count: int) -> tuple[dict[str, object], int]:
    """Read `count` metadata entries. Returns (values by key, next offset).
    Raises FormatError, also for a key twice.

    >>> read_metadata(b"\\x01\\0\\0\\0\\0\\0\\0\\0k" + b"\\x07\\0\\0\\0" + b"\\x01", 0, 1)
    ({'k': True}, 14)
    """
    # 13: an empty key, a type, one byte
    require_bytes(data, offset, count * 13, f"{count} metadata entries")
    metadata = {}
    for _ in range(count):
        start = offset
        key, offset = read_value(data, offset, ValueType.STRING)
        if key in metadata:
            raise FormatError(f"cannot read the metadata entry at byte {start}",
                              f"key {key[:80]!r} occurs twice", WRITE_AGAIN)
        value_type, offset = read_value(data, offset, ValueType.UINT32)
        try:
            metadata[key], offset = read_value(data, offset, value_type)
        except FormatError as error:
            raise FormatError(f"cannot read metadata {key[:80]!r}",
                              f"{error.what}: {error.why}", error.hint) from error
    return metadata, offset


def read_tensor_table(data: bytes | memoryview, offset: int,
                      count: int) -> tuple[dict[str, TensorRow], int]:
    """Read the `count` rows of the tensor table that starts at `offset`.

    Returns (TensorRow by name, in the file's order; next offset). `shape` is in NumPy's order,
    the reverse of the file's; `nbytes` follows from shape and type: `BLOCK_FORMATS` says how
    many bytes hold how many values.

    Raises FormatError, naming the tensor, for a table that does not end inside `data` (a file
    may claim 2**63 rows), a name twice, other than 1 to `MAX_TENSOR_DIMS` dimensions, a
    dimension of 0, more than 2**63 - 1 values, a type that is not in `BLOCK_FORMATS`, and a row
    (the last axis) that is not a whole number of blocks. Whether offsets lie inside the file is
    not checked here.

    >>> name = b"\\x01\\0\\0\\0\\0\\0\\0\\0w"
    >>> dims = b"\\x01\\0\\0\\0" + b"\\x40\\0\\0\\0\\0\\0\\0\\0"
    >>> rows, end = read_tensor_table(name + dims + b"\\x08\\0\\0\\0" + bytes(8), 0, 1)
    >>> rows["w"], end
    (TensorRow(name='w', shape=(64,), type=<TensorType.Q8_0: 8>, offset=0, nbytes=68), 33)
    """
    # 32: an empty name, one dimension
    require_bytes(data, offset, count * 32, f"a table of {count} tensors")
    tensors = {}
    for _ in range(count):
        start = offset
        name, offset = read_value(data, offset, ValueType.STRING)
        where = f"cannot read the entry of tensor {name[:80]!r} at byte {start}"
        if name in tensors:
            raise FormatError(where, "the name occurs twice", WRITE_AGAIN)
        n_dims, offset = read_value(data, offset, ValueType.UINT32)
        if not 1 <= n_dims <= MAX_TENSOR_DIMS:
            raise FormatError(where, f"it has {n_dims} dimensions, not 1 to {MAX_TENSOR_DIMS}",
                              WRITE_AGAIN)
        dims = []
        for _ in range(n_dims):
            dim, offset = read_value(data, offset, ValueType.UINT64)
            dims.append(dim)
        if not 0 < prod(dims) < 2**63:
            why = f"the product of its dimensions {dims} is not in 1 .. 2**63 - 1"
            raise FormatError(where, why, WRITE_AGAIN)
        type_number, offset = read_value(data, offset, ValueType.UINT32)
        if type_number not in BLOCK_FORMATS:
            known = (f" ({TensorType(type_number).name})" if type_number in list(TensorType)
                     else "")
            raise FormatError(where, f"type {type_number}{known} is not supported",
                              USE_ANOTHER_TYPE)
        block = BLOCK_FORMATS[type_number]
        if dims[0] % block.size:
            why = f"its rows of {dims[0]} values are not whole blocks of {block.size}"
            raise FormatError(where, why, WRITE_AGAIN)
        data_offset, offset = read_value(data, offset, ValueType.UINT64)
        nbytes = prod(dims) // block.size * block.nbytes
        tensors[name] = TensorRow(name, tuple(reversed(dims)), TensorType(type_number),
                                  data_offset, nbytes)
    return tensors, offset


def dequantize_q8_0(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 signed bytes that share one scale.

    blocks: (n, 34) uint8: scale (float16), then 32 int8. Returns (n, 32) float32: scale * byte.
    Source: block_q8_0 in ggml-common.h.

    >>> # 0x3800 is the float16 0.5
    >>> dequantize_q8_0(np.array([[0, 0x38] + [255] * 32], np.uint8))[0, :3]
    array([-0.5, -0.5, -0.5], dtype=float32)
    """
    scale = blocks[:, :2].view("<f2").astype(np.float32)        # (n, 1)
    return blocks[:, 2:].view(np.int8) * scale


def dequantize_q4_0(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 four-bit values around zero that share one scale.

    blocks: (n, 18) uint8: scale (float16), then 16 bytes of two values each. The low four bits
    of byte j are value j, the high four bits value j + 16.
    Returns (n, 32) float32: scale * (four bits - 8).
    Source: block_q4_0 in ggml-common.h.

    >>> dequantize_q4_0(np.array([[0, 0x38] + [0x9A] * 16], np.uint8))[0, [0, 1, 16]]
    array([1. , 1. , 0.5], dtype=float32)
    """
    scale = blocks[:, :2].view("<f2").astype(np.float32)        # (n, 1)
    values = np.empty((len(blocks), 32), np.float32)
    values[:, :16] = blocks[:, 2:] & 15
    values[:, 16:] = blocks[:, 2:] >> 4
    values -= 8
    values *= scale
    return values


def dequantize_q4_1(blocks: np.ndarray) -> np.ndarray:
    """Expand blocks of 32 four-bit values that share one scale and one minimum.

    blocks: (n, 20) uint8: scale (float16), minimum (float16), then 16 bytes of two values each,
    as in Q4_0.
    Returns (n, 32) float32: scale * four bits + minimum. Source: block_q4_1 in ggml-common.h.

    >>> # 0xBC00 is -1
    >>> dequantize_q4_1(np.array([[0, 0x38, 0, 0xBC] + [0x31] * 16], np.uint8))[0, [0, 1, 16]]
    array([-0.5, -0.5,  0.5], dtype=float32)
    """
    scale = blocks[:, 0:2].view("<f2").astype(np.float32)       # (n, 1)
    minimum = blocks[:, 2:4].view("<f2").astype(np.float32)     # (n, 1)
    values = np.empty((len(blocks), 32), np.float32)
    values[:, :16] = blocks[:, 4:] & 15
    values[:, 16:] = blocks[:, 4:] >> 4
    values *= scale
    values += minimum
    return values


@dataclass(frozen=True)
class BlockFormat:
    """How one TensorType is stored: `size` values in `nbytes` bytes.
    dequantize: (n, nbytes) uint8 -> (n, size)."""

    size: int
    nbytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]


BLOCK_FORMATS = {
    TensorType.F32: BlockFormat(1, 4, dequantize_f32),
    TensorType.F16: BlockFormat(1, 2, dequantize_f16),
    TensorType.BF16: BlockFormat(1, 2, dequantize_bf16),
    TensorType.Q8_0: BlockFormat(32, 34, dequantize_q8_0),
    TensorType.Q4_0: BlockFormat(32, 18, dequantize_q4_0),
    TensorType.Q4_1: BlockFormat(32, 20, dequantize_q4_1),
    TensorType.Q5_0: BlockFormat(32, 22, dequantize_q5_0),
    TensorType.Q5_1: BlockFormat(32, 24, dequantize_q5_1),
    TensorType.Q2_K: BlockFormat(256, 84, dequantize_q2_k),
    TensorType.Q3_K: BlockFormat(256, 110, dequantize_q3_k),
    TensorType.Q4_K: BlockFormat(256, 144, dequantize_q4_k),
    TensorType.Q5_K: BlockFormat(256, 176, dequantize_q5_k),
    TensorType.Q6_K: BlockFormat(256, 210, dequantize_q6_k),
    TensorType.IQ4_NL: BlockFormat(32, 18, dequantize_iq4_nl),
    TensorType.IQ4_XS: BlockFormat(256, 136, dequantize_iq4_xs),
    TensorType.MXFP4: BlockFormat(32, 17, dequantize_mxfp4),
}

USE_ANOTHER_TYPE = ("use a copy of the model in "
                    f"{', '.join(kind.name for kind in BLOCK_FORMATS)}")
# 512 KB of float32: a chunk and its intermediate results stay in the cache of one core
CHUNK_VALUES = 131_072


def dequantize(raw: np.ndarray, type: int, shape: tuple[int, ...],
               out: np.ndarray | None = None) -> np.ndarray:
    """Turn the bytes of a tensor into float32 values.

    raw: the tensor's bytes, uint8, one dimension; type: a `TensorType`; shape: of the values,
    in NumPy's order. Returns float32 of that shape: `out` if it is given (float32 of that
    shape, filled in place; with two dimensions it may be strided, such as a transposed or
    sliced view), else a view of `raw` for F32 and new memory for other types.

    Raises FormatError for a type that is not in `BLOCK_FORMATS`, for a last axis that is not a
    whole number of blocks, and where `raw` does not have exactly the bytes that the shape
    takes.

    >>> dequantize(np.array([0, 0x3C, 0, 0x40], np.uint8), TensorType.F16, (2, 1))
    array([[1.],
           [2.]], dtype=float32)
    """
    if type not in BLOCK_FORMATS:
        raise FormatError("cannot dequantize a tensor", f"type {type} is not supported",
                          USE_ANOTHER_TYPE)
    block = BLOCK_FORMATS[type]
    *outer, columns = shape
    rows, blocks_per_row = prod(outer), columns // block.size
    if columns % block.size or raw.size != rows * blocks_per_row * block.nbytes:
        why = (f"{raw.size} bytes of {TensorType(type).name} do not make shape {tuple(shape)}: "
               f"{block.nbytes} bytes hold {block.size} values of a row")
        raise FormatError("cannot dequantize a tensor", why, FETCH_AGAIN)
    blocks = raw.reshape(-1, block.nbytes)
    if out is None:
        if type == TensorType.F32:
            return block.dequantize(blocks).reshape(shape)
        out = np.empty(shape, np.float32)

    # a copy would fill memory that nobody sees
    target = out.reshape((rows, columns), copy=False)
    step = max(1, CHUNK_VALUES // max(1, columns))
    for row in range(0, rows, step):
        chunk = blocks[row * blocks_per_row:(row + step) * blocks_per_row]
        target[row:row + step] = block.dequantize(chunk).reshape(-1, columns)
    return out


class GGUFFile:
    """A GGUF file open for reading: a context manager, mapped; names, types, offsets checked.

    path: where it is; version: 2 or 3; metadata: values by key; tensors: TensorRow by name;
    data_start: the file offset of the data section.

    >>> with GGUFFile.open("SmolLM2-135M-Instruct.Q4_1.gguf") as file:         # doctest: +SKIP
    ...     file.metadata["general.architecture"], file.tensor("output_norm.weight").shape
    ('llama', (576,))
    """

    def __init__(self, path: Path, data: memoryview):
        self.path = path
        self.version, tensor_count, metadata_count = _read_preamble(data)
        self.metadata, offset = read_metadata(data, HEADER_BYTES, metadata_count)
        self.tensors, offset = read_tensor_table(data, offset, tensor_count)
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise FormatError("cannot find the data section",
                              f"general.alignment is {str(alignment)[:80]!r}, "
                              "not a power of two", WRITE_AGAIN)
        self.data_start = _align(offset, alignment)
        _check_placement(self.tensors, self.data_start, alignment, len(data))
        self._data: memoryview | None = data

    @classmethod
    def open(cls, path: str | Path) -> "GGUFFile":
        """Map the file and check all but the values.
        Raises NotAvailableError or FormatError; both name the file."""
        try:
            return cls(Path(path), map_file(path))
        except FormatError as error:
            raise FormatError(f"cannot open {path}", f"{error.what}: {error.why}",
                              error.hint) from error

    def raw(self, name: str) -> np.ndarray:
        """Return one tensor's bytes: uint8, one dimension, a read-only view of the file."""
        if self._data is None:
            raise ValueError(f"{self.path} is closed")
        if name not in self.tensors:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                              "the file has no tensor of that name",
                              names_like(name, self.tensors))
        info = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, info.nbytes, self.data_start + info.offset)

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """Return one tensor as `dequantize` gives it.
        F32 without `out` is a read-only view of the file."""
        raw = self.raw(name)
        info = self.tensors[name]
        values = dequantize(raw, info.type, info.shape, out)
        if out is not None:
            self.release(name)
        return values

    def release(self, name: str) -> None:
        """Let the operating system have the memory of a tensor's bytes, which were read."""
        info = self.tensors[name]
        start = self.data_start + info.offset
        let_go(self._data, start, start + info.nbytes)

    def close(self) -> None:
        """Let go of the file.
        Views that were given out stay valid: the mapping lives as long as they do."""
        self._data = None

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _read_preamble(data: memoryview) -> tuple[int, int, int]:
    if data[:4] != b"GGUF":
        why = f"the file begins with {bytes(data[:4])!r}, not with b'GGUF'"
        raise FormatError("cannot read the magic number at byte 0", why,
                          "give the path of a GGUF file, or fetch it again")
    version, offset = read_value(data, 4, ValueType.UINT32)
    if version not in (2, 3):
        # A version is a small number: with 16 low bits empty, it was written backwards
        big_endian = version and version & 0xFFFF == 0
        why = "the file is big-endian" if big_endian else f"version {version} is not supported"
        raise FormatError("cannot read the version at byte 4", why,
                          "fetch another copy of the model: today's GGUF files are "
                          "little-endian and of version 3")
    tensor_count, offset = read_value(data, offset, ValueType.UINT64)
    metadata_count, offset = read_value(data, offset, ValueType.UINT64)
    return version, tensor_count, metadata_count


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _check_placement(tensors: dict[str, TensorRow], data_start: int, alignment: int,
                     file_size: int) -> None:
    """Tensors must fill the data section in turn, padded to the alignment, as in llama.cpp."""
    expected = 0
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        where = f"cannot place tensor {info.name[:80]!r}"
        if info.offset != expected:
            why = (f"its offset in the data section is {info.offset}, and the tensors before "
                   f"it fill {expected} bytes")
            raise FormatError(where, why, WRITE_AGAIN)
        if data_start + info.offset + info.nbytes > file_size:
            why = (f"it would end at byte {data_start + info.offset + info.nbytes}, and the "
                   f"file has {file_size}")
            raise FormatError(where, why, FETCH_AGAIN)
        expected = _align(info.offset + info.nbytes, alignment)
