"""Truncated, corrupt and hostile model files:
read rightly or refused clearly, at once, in little memory. About 30 s.

The files are made here byte by byte, so that each differs from a good one in one thing.
"""

import io
import json
import os
import pickletools
import random
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import given, settings, strategies as st

from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.gguf import (BLOCK_FORMATS, MAX_ARRAY_DEPTH, MAX_STRING_BYTES, GGUFFile,
                                    TensorType, ValueType)
from gearworks.formats.pickled import PickledFile
from gearworks.formats.restricted_pickle import unpickle
from gearworks.formats.safetensors import (MAX_HEADER_BYTES, SafetensorsFile, read_header,
                                           read_tensor)
from gearworks.formats.shards import ShardedSafetensors
from gearworks.formats.files import read_json

MB = 2**20


@contextmanager
def frugal(megabytes: float = 4, seconds: float = 1):
    """The body must end within a second of computing, and never hold more memory than this."""
    tracemalloc.start()
    started = process_time()
    try:
        yield
        elapsed, peak = process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert elapsed < seconds, f"took {elapsed:.2f} s"
    assert peak < megabytes * MB, f"took {peak / MB:.1f} MB"


def refused(open_file: Callable, path: Path) -> str:
    """Opening must raise a FormatError that names the file and says why and what to try;
    returns its text."""
    with frugal(), pytest.raises(FormatError) as caught:
        open_file(path)
    error = caught.value
    assert path.name in error.what and error.why and error.hint
    return str(error)


# --- GGUF, packed by hand ---------------------------------------------------------------------

def number(code: str, value: int | float) -> bytes:
    return struct.pack(f"<{code}", value)


def text(content: str | bytes, length: int | None = None) -> bytes:
    content = content.encode("utf-8") if isinstance(content, str) else content
    return number("Q", len(content) if length is None else length) + content


def array(item_type: int, items: bytes, count: int) -> bytes:
    return number("I", item_type) + number("Q", count) + items


def entry(key: str | bytes, value_type: int, value: bytes) -> bytes:
    return text(key) + number("I", value_type) + value


def row(name: str | bytes, dims: tuple[int, ...], tensor_type: int, offset: int,
        n_dims: int | None = None) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return (text(name) + number("I", count) + b"".join(number("Q", dim) for dim in dims)
            + number("I", tensor_type) + number("Q", offset))


GOOD_ENTRIES = [entry("general.architecture", ValueType.STRING, text("llama")),
                entry("general.alignment", ValueType.UINT32, number("I", 64)),
                entry("tokens", ValueType.ARRAY,
                      array(ValueType.STRING, text("a") + text("Ġb") + text(""), 3)),
                entry("token_type", ValueType.ARRAY,
                      array(ValueType.INT32, struct.pack("<3i", 1, -2, 3), 3)),
                entry("flags", ValueType.ARRAY, array(ValueType.BOOL, b"\x00\x01", 2)),
                entry("nested", ValueType.ARRAY,
                      array(ValueType.ARRAY, array(ValueType.UINT8, b"\x05", 1) * 2, 2)),
                entry("eps", ValueType.FLOAT32, number("f", 1e-5))]
GOOD_ROWS = [
    row("a.weight", (32, 3), TensorType.Q4_1, 0),       # 60 bytes, padded to 64
    row("b.weight", (5,), TensorType.F32, 64),          # 20 bytes, padded to 64
    row("c.weight", (64, 2), TensorType.Q8_0, 128),     # 136 bytes
]
DATA_BYTES = 264


def gguf_file(entries: list[bytes] = GOOD_ENTRIES, rows: list[bytes] = GOOD_ROWS, *,
              magic: bytes = b"GGUF", version: bytes = number("I", 3),
              n_rows: int | None = None, n_entries: int | None = None,
              data_bytes: int = DATA_BYTES) -> bytes:
    head = (magic + version + number("Q", len(rows) if n_rows is None else n_rows)
            + number("Q", len(entries) if n_entries is None else n_entries) + b"".join(entries)
            + b"".join(rows))
    # scales stay finite
    return head + bytes(-len(head) % 64) + bytes(i % 60 for i in range(data_bytes))


def only(value_type: int, value: bytes, key: str | bytes = "key") -> bytes:
    """A file whose first metadata entry is this one."""
    return gguf_file([entry(key, value_type, value), *GOOD_ENTRIES])


def aligned_by(value_type: int, value: bytes) -> bytes:
    """A file with this alignment and one tensor, which any alignment suits,
    before plenty of data."""
    return gguf_file([entry("general.alignment", value_type, value)], GOOD_ROWS[:1],
                     data_bytes=10_000)


def rows_with(bad: bytes) -> bytes:
    """A file whose last tensor is this one, before plenty of data."""
    return gguf_file(rows=[*GOOD_ROWS[:2], bad], data_bytes=10_000)


def deep_arrays(depth: int) -> bytes:
    return array(ValueType.ARRAY, b"", 1) * (depth - 1) + array(ValueType.UINT8, b"\x07", 1)


HOSTILE_GGUF = {
    "no magic": gguf_file(magic=b"GGML"),
    "version 1": gguf_file(version=number("I", 1)),
    "version 4": gguf_file(version=number("I", 4)),
    "version 0": gguf_file(version=number("I", 0)),
    "big-endian": gguf_file(version=struct.pack(">I", 3)),
    "2**63 tensors": gguf_file(n_rows=2**63),
    "2**64 - 1 tensors": gguf_file(n_rows=2**64 - 1),
    "one tensor too many": gguf_file(n_rows=4),
    "2**63 entries": gguf_file(n_entries=2**63),
    "2**64 - 1 entries": gguf_file(n_entries=2**64 - 1),
    "one entry too many": gguf_file(n_entries=len(GOOD_ENTRIES) + 1),
    "one entry too few": gguf_file(n_entries=len(GOOD_ENTRIES) - 1),
    "key of 2**63 bytes": gguf_file([text("k", 2**63), *GOOD_ENTRIES]),
    "key of 2**64 - 8 bytes": gguf_file([text("k", 2**64 - 8), *GOOD_ENTRIES]),
    "key is not UTF-8": only(ValueType.UINT8, b"\x01", key=b"\xff\xfe"),
    "key twice": gguf_file([*GOOD_ENTRIES, GOOD_ENTRIES[0]]),
    "string of 2**63 bytes": only(ValueType.STRING, text("v", 2**63)),
    "string one byte beyond the end": gguf_file([entry("k", ValueType.STRING,
                                                       text("v", 2 * DATA_BYTES))], []),
    "string is not UTF-8": only(ValueType.STRING, text(b"\xc3\x28")),
    "half a surrogate pair": only(ValueType.STRING, text(b"\xed\xa0\x80")),
    "value type 13": only(13, bytes(8)),
    "value type 13 with a value like an array's": only(13, array(ValueType.UINT8, b"\x05", 1)),
    "value type 2**32 - 1": only(2**32 - 1, bytes(8)),
    "items of type 13": only(ValueType.ARRAY, array(13, b"", 0)),
    "items of type 2**31": only(ValueType.ARRAY, array(2**31, bytes(8), 1)),
    "2**63 bytes": only(ValueType.ARRAY, array(ValueType.UINT8, b"", 2**63)),
    "2**61 uint64, 0 bytes modulo 2**64": only(ValueType.ARRAY,
                                               array(ValueType.UINT64, b"", 2**61)),
    "2**63 strings": only(ValueType.ARRAY, array(ValueType.STRING, b"", 2**63)),
    "2**61 strings": only(ValueType.ARRAY, array(ValueType.STRING, b"", 2**61)),
    "2**63 arrays": only(ValueType.ARRAY, array(ValueType.ARRAY, b"", 2**63)),
    "bool 2": only(ValueType.BOOL, b"\x02"),
    "bool 255 among others": only(ValueType.ARRAY, array(ValueType.BOOL, b"\x00\x01\xff", 3)),
    "arrays too deep": only(ValueType.ARRAY, deep_arrays(MAX_ARRAY_DEPTH + 1)),
    "arrays far too deep": only(ValueType.ARRAY, deep_arrays(50_000)),
    "alignment 0": aligned_by(ValueType.UINT32, number("I", 0)),
    "alignment 3": aligned_by(ValueType.UINT32, number("I", 3)),
    "alignment 96": aligned_by(ValueType.UINT32, number("I", 96)),
    "alignment -64": aligned_by(ValueType.INT32, number("i", -64)),
    "alignment 64.0": aligned_by(ValueType.FLOAT32, number("f", 64.0)),
    "alignment true": aligned_by(ValueType.BOOL, b"\x01"),
    "alignment '64'": aligned_by(ValueType.STRING, text("64")),
    "alignment [64]": aligned_by(ValueType.ARRAY, array(ValueType.UINT32, number("I", 64), 1)),
    "alignment 2**31": aligned_by(ValueType.UINT32, number("I", 2**31)),
    "tensor name of 2**63 bytes": rows_with(text("c.weight", 2**63)),
    "tensor name is not UTF-8": rows_with(row(b"\xff.weight", (64, 2), TensorType.Q8_0, 128))}

# These are about one tensor, so the message must name it.
HOSTILE_GGUF_TENSOR = {
    "name twice": rows_with(row("a.weight", (64, 2), TensorType.Q8_0, 128)),
    "0 dimensions": rows_with(row("c.weight", (), TensorType.F32, 128)),
    "5 dimensions": rows_with(row("c.weight", (2, 1, 1, 1, 2), TensorType.F32, 128)),
    "2**32 - 1 dimensions": rows_with(row("c.weight", (2, 2), TensorType.F32, 128,
                                          n_dims=2**32 - 1)),
    "a dimension of 0": rows_with(row("c.weight", (32, 0), TensorType.F32, 128)),
    "a row of 0": rows_with(row("c.weight", (0, 2), TensorType.Q8_0, 128)),
    "2**63 values": rows_with(row("c.weight", (2**63,), TensorType.F32, 128)),
    "2**64 values, 0 in 64 bits": rows_with(row("c.weight", (2**32, 2**32), TensorType.F32,
                                                128)),
    "2**62 values, 0 bytes in 64 bits": rows_with(row("c.weight", (2**31, 2**31),
                                                      TensorType.F32, 128)),
    "2**64 - 4 values, -16 bytes in 64 bits": rows_with(row("c.weight", (2**64 - 4,),
                                                            TensorType.F32, 128)),
    "a type that was removed": rows_with(row("c.weight", (64, 2), 4, 128)),
    "a type that is not read yet": rows_with(row("c.weight", (256, 2), TensorType.IQ2_XS, 128)),
    "type 2**32 - 1": rows_with(row("c.weight", (64, 2), 2**32 - 1, 128)),
    "a row of 33": rows_with(row("c.weight", (33, 32), TensorType.Q8_0, 128)),
    "two rows in one block": rows_with(row("c.weight", (16, 2), TensorType.Q4_0, 128)),
    "off the alignment": rows_with(row("c.weight", (64, 2), TensorType.Q8_0, 129)),
    "in a gap": rows_with(row("c.weight", (64, 2), TensorType.Q8_0, 192)),
    "over another tensor": rows_with(row("c.weight", (64, 2), TensorType.Q8_0, 64)),
    "offset 2**63": rows_with(row("c.weight", (64, 2), TensorType.Q8_0, 2**63)),
    "offset 2**64 - 64": rows_with(row("c.weight", (64, 2), TensorType.Q8_0, 2**64 - 64)),
    "one block beyond the file": gguf_file(rows=[
        *GOOD_ROWS[:2], row("c.weight", (64, 3), TensorType.Q8_0, 128)]),
    "a tensor larger than the file": rows_with(row("c.weight", (2**20,), TensorType.F32, 128))}


def test_the_good_gguf_is_good(tmp_path):
    """Else the hostile ones would be refused for nothing."""
    path = tmp_path / "good.gguf"
    path.write_bytes(gguf_file())
    with GGUFFile.open(path) as file:
        assert (file.metadata["tokens"] == ["a", "Ġb", ""]
                and file.metadata["flags"].tolist() == [False, True])
        assert {name: file.tensor(name).shape for name in file.tensors} == {
            "a.weight": (3, 32), "b.weight": (5,), "c.weight": (2, 64)}
    path.write_bytes(aligned_by(ValueType.UINT32, number("I", 128)))
    GGUFFile.open(path).close()
    for depth in (1, MAX_ARRAY_DEPTH):
        path.write_bytes(only(ValueType.ARRAY, deep_arrays(depth)))
        with GGUFFile.open(path) as file:
            assert np.ravel(file.metadata["key"]) == [7]


@pytest.mark.parametrize("fault", HOSTILE_GGUF)
def test_hostile_gguf(tmp_path, fault):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE_GGUF[fault])
    refused(GGUFFile.open, path)


@pytest.mark.parametrize("fault", HOSTILE_GGUF_TENSOR)
def test_hostile_gguf_tensor(tmp_path, fault):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE_GGUF_TENSOR[fault])
    message = refused(GGUFFile.open, path)
    assert ("a.weight" if fault == "name twice" else "c.weight") in message


def test_gguf_cut_anywhere():
    """Every beginning of the file but the whole is refused:
    no border between two fields is special."""
    data = gguf_file()
    read_everything(data, GGUFFile)
    with frugal(seconds=60):
        for length in range(len(data)):
            with pytest.raises(FormatError):
                GGUFFile(Path("cut.gguf"), memoryview(data)[:length])


def read_everything(data: bytes | bytearray | memoryview, kind: type) -> object:
    """Open the bytes and read every tensor."""
    file = kind(Path("file"), memoryview(data))
    with np.errstate(all="ignore"):     # a changed scale may be infinite
        for name, info in file.tensors.items():
            assert file.tensor(name).shape == info.shape
    return file


def is_read(data: bytes | bytearray, kind: type) -> bool:
    """Whether the bytes can be read; any other error than FormatError comes through."""
    try:
        read_everything(data, kind)
        return True
    except FormatError:
        return False


NASTY = [0, 1, 7, 8, 9, 12, 13, 31, 33, 2**31, 2**32 - 1, 2**61, 2**63 - 1, 2**63, 2**64 - 8,
         2**64 - 1]


def mutate(rng: random.Random, data: bytearray, end: int) -> None:
    """Change the first `end` bytes in one of five ways; some of them change the length."""
    at = rng.randrange(end)
    match rng.randrange(5):
        case 0:
            data[at] = rng.randrange(256)
        case 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            code = rng.choice("IQ")
            field = number(code, rng.choice(NASTY) % (2**32 if code == "I" else 2**64))
            data[at:at + len(field)] = field
        case 3:
            del data[at:at + rng.randrange(1, 40)]
        case 4:
            data[at:at] = data[at:at + rng.randrange(1, 40)]


def test_mutated_gguf():
    """3,000 damaged copies: each is read or refused, and none costs time or memory."""
    good = gguf_file()
    rng = random.Random(1)
    read = 0
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 5])):
            mutate(rng, data, len(data) - DATA_BYTES)
        with frugal():
            read += is_read(data, GGUFFile)
    assert 100 < read < 2900


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_any_bytes_are_values_of_every_type(tmp_path, kind):
    """A file of one tensor of each type, whose bytes are random:
    float32 of its shape, whatever the scales are."""
    block = BLOCK_FORMATS[kind]
    data = gguf_file(rows=[row("w", (3 * block.size, 2), kind, 0)], data_bytes=0)
    data += np.random.default_rng(kind).bytes(6 * block.nbytes)
    file = read_everything(data, GGUFFile)
    with np.errstate(all="ignore"):
        assert file.tensor("w").dtype == np.float32
    assert not is_read(data[:-1], GGUFFile)


def test_mutated_smollm2_header(smollm2_gguf):
    """The same with the header of the real model:
    its vocabulary, 272 tensors and 98 MB of data behind it."""
    data = bytearray(smollm2_gguf.read_bytes())
    with GGUFFile.open(smollm2_gguf) as file:
        header_end = file.data_start
    table_start = data.index(text(next(iter(file.tensors))))
    # Most changes hit the places where counts, types, lengths and offsets lie, not the letters
    # of the vocabulary.
    places = [range(24), range(24, 2000), range(table_start, header_end - 64),
              range(header_end - 64)]
    rng = random.Random(2)
    read = 0
    for i in range(48):
        at = rng.choice(places[i % 4])
        field = (number("Q", rng.choice(NASTY)) if i % 3
                 else bytes([data[at] ^ 1 << rng.randrange(8)]))
        before = data[at:at + len(field)]
        data[at:at + len(field)] = field
        started = process_time()
        try:
            GGUFFile(smollm2_gguf, memoryview(data))
            read += 1
        except FormatError:
            pass
        assert process_time() - started < 1
        data[at:at + len(field)] = before
    assert 4 < read < 44


def test_a_string_that_swallows_the_tensors(smollm2_gguf):
    """The first string claims 64 MB of weights, which the file has:
    no such memory is reserved to decode them."""
    data = bytearray(smollm2_gguf.read_bytes())
    at = data.index(text("llama"), 24)
    for length in (2**26, MAX_STRING_BYTES + 1):
        data[at:at + 8] = number("Q", length)
        with frugal(), pytest.raises(FormatError):
            GGUFFile(smollm2_gguf, memoryview(data))


def test_smollm2_cut_short(smollm2_gguf):
    """Cut at random places of the header and of the data,
    as an interrupted download leaves it."""
    data = memoryview(smollm2_gguf.read_bytes())
    with GGUFFile.open(smollm2_gguf) as file:
        header_end = file.data_start
    rng = random.Random(3)
    cuts = [0, 3, 4, 23, 24, header_end - 1, header_end, len(data) - 1]
    cuts += ([rng.randrange(header_end) for _ in range(8)]
             + [rng.randrange(header_end, len(data)) for _ in range(4)])
    for cut in cuts:
        started = process_time()
        with pytest.raises(FormatError):
            GGUFFile(smollm2_gguf, data[:cut])
        assert process_time() - started < 1


# --- safetensors ------------------------------------------------------------------------------

def st_file(header: bytes | dict, data: bytes = b"", size: int | None = None) -> bytes:
    header = json.dumps(header).encode("ascii") if isinstance(header, dict) else header
    return number("Q", len(header) if size is None else size) + header + data


def tensor(shape: list, begin: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def st_tensor(**changes) -> bytes:
    """A file of one tensor, "a.weight", with these members of its entry changed;
    None takes a member away."""
    members = {**tensor([2, 3], 0, 24), **changes}
    return st_file({"a.weight": {key: value for key, value in members.items()
                                 if value is not None}}, bytes(24))


GOOD_HEADER = {"__metadata__": {"format": "pt"}, "b": tensor([4], 24, 32, "BF16"),
               "a.weight": tensor([2, 3], 0, 24), "e": tensor([0, 5], 32, 32),
               "s": tensor([], 32, 40, "I64")}
GOOD_SAFETENSORS = st_file(GOOD_HEADER, bytes(range(40)))

HOSTILE_SAFETENSORS = {
    "empty": b"",
    "7 bytes": b"\x02" + bytes(6),
    "header of 2**60 bytes": st_file(GOOD_HEADER, bytes(40), size=2**60),
    "header of 2**64 - 1 bytes": st_file(GOOD_HEADER, bytes(40), size=2**64 - 1),
    "header of 2**64 - 8 bytes, 0 in 64 bits": st_file(GOOD_HEADER, bytes(40), size=2**64 - 8),
    "header beyond the file": st_file(GOOD_HEADER, size=1000),
    "header of 0 bytes": st_file(b""),
    "header cut by a wrong size": st_file(GOOD_HEADER, bytes(40), size=20),
    "a ZIP file": b"PK\x03\x04" + bytes(100),
    "not UTF-8": st_file(b'{"\xff":1}'),
    "UTF-16": st_file('{"a":1}'.encode("utf-16")),
    "a byte order mark": st_file(b"\xef\xbb\xbf{}"),
    "no JSON": st_file(b"{'a': 1}"),
    "two values": st_file(b"{}{}"),
    "a list": st_file(b"[]"),
    "a number": st_file(b"17"),
    "null": st_file(b"null"),
    "NaN": st_file(b'{"__metadata__":NaN}'),
    "lists too deep": st_file(b"[" * 100_000),
    "objects too deep": st_file(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number of 100,000 digits": st_file(b'{"a":' + b"9" * 100_000 + b"}"),
    "metadata twice": st_file(b'{"__metadata__":{},"__metadata__":{}}'),
    "metadata key twice": st_file(b'{"__metadata__":{"x":"1","x":"2"}}'),
    "metadata is a list": st_file({"__metadata__": []}),
    "metadata holds a number": st_file({"__metadata__": {"format": 1}}),
    "metadata holds an object": st_file({"__metadata__": {"format": {}}}),
    "metadata holds half a surrogate pair": st_file(b'{"__metadata__":{"x":"\\ud800"}}'),
    "name is half a surrogate pair": st_file(
        b'{"\\udc00":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "bytes that no tensor owns": st_file(GOOD_HEADER, bytes(41)),
    "only bytes": st_file({}, bytes(4))}

# These are about one tensor, so the message must name it.
HOSTILE_SAFETENSORS_TENSOR = {
    "name twice": st_file(b'{"a.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                          b'"a.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                          bytes(4)),
    "entry is a list": st_file({"a.weight": ["F32", [1], [0, 4]]}, bytes(4)),
    "entry is null": st_file({"a.weight": None}),
    "no dtype": st_tensor(dtype=None),
    "no shape": st_tensor(shape=None),
    "no data_offsets": st_tensor(data_offsets=None),
    "one member more": st_tensor(offsets=[0, 24]),
    "dtype in lower case": st_tensor(dtype="f32"),
    "dtype narrower than a byte": st_tensor(dtype="F4"),
    "dtype is a list": st_tensor(dtype=["F32"]),
    "dtype is a number": st_tensor(dtype=32),
    "dtype of another size": st_tensor(dtype="F16"),
    "shape is a number": st_tensor(shape=6),
    "shape of floats": st_tensor(shape=[2.0, 3]),
    "shape of strings": st_tensor(shape=["2", "3"]),
    "shape of bools": st_tensor(shape=[True, 6]),
    "shape with null": st_tensor(shape=[2, 3, []]),
    "negative shape": st_tensor(shape=[-2, -3]),
    "shape too small": st_tensor(shape=[2, 2]),
    "shape too large": st_tensor(shape=[2, 4]),
    "2**64 + 6 values, 6 in 64 bits": st_tensor(shape=[2, 2**63 + 3]),
    "2**64 values, 0 in 64 bits": st_tensor(shape=[2**32, 2**32], data_offsets=[0, 0]),
    "2**62 values, 0 bytes in 64 bits": st_tensor(shape=[2**31, 2**31], data_offsets=[0, 0]),
    "no values in an impossible shape": st_file({"a.weight": tensor([2**40, 0, 2**40], 0, 0)}),
    "100 dimensions": st_file({"a.weight": tensor([1] * 100, 0, 4)}, bytes(4)),
    "10,000 dimensions of 2**62": st_file({"a.weight": tensor([2**62] * 10_000, 0, 4)},
                                          bytes(4)), "one offset": st_tensor(data_offsets=[0]),
    "three offsets": st_tensor(data_offsets=[0, 24, 24]),
    "offsets of floats": st_tensor(data_offsets=[0.0, 24.0]),
    "offset 1e2": st_file(b'{"a.weight":{"dtype":"U8","shape":[100],"data_offsets":[0,1e2]}}',
                          bytes(100)),
    "offset true": st_file({"a.weight": tensor([1], False, True, "U8")}, bytes(1)),
    "negative begin": st_tensor(data_offsets=[-24, 0]),
    "end before begin": st_tensor(data_offsets=[24, 0]),
    "end beyond the file": st_tensor(shape=[2, 4], data_offsets=[0, 32]),
    "begin beyond the file": st_tensor(data_offsets=[1000, 1024]),
    "end 2**63": st_tensor(data_offsets=[0, 2**63]),
    "offsets 2**64": st_tensor(data_offsets=[2**64, 2**64 + 24]),
    "same bytes as another": st_file({"b": tensor([6], 0, 24), "a.weight": tensor([6], 0, 24)},
                                     bytes(24)),
    "overlap": st_file({"b": tensor([6], 0, 24), "a.weight": tensor([6], 20, 44)}, bytes(44)),
    "inside another": st_file({"b": tensor([6], 0, 24), "a.weight": tensor([1], 8, 12)},
                              bytes(24)),
    "a gap before it": st_file({"b": tensor([6], 0, 24), "a.weight": tensor([6], 28, 52)},
                               bytes(52)),
    "a gap before the first": st_file({"a.weight": tensor([6], 4, 28)}, bytes(28)),
    "an empty tensor inside another": st_file({"b": tensor([6], 0, 24),
                                               "a.weight": tensor([0], 8, 8)}, bytes(24))}


def test_the_good_safetensors_is_good(tmp_path):
    path = tmp_path / "good.safetensors"
    path.write_bytes(GOOD_SAFETENSORS)
    with SafetensorsFile.open(path) as file:
        assert {name: file.tensor(name).shape for name in file.tensors} == {
            "b": (4,), "a.weight": (2, 3), "e": (0, 5), "s": ()}
    path.write_bytes(st_tensor())
    SafetensorsFile.open(path).close()
    # padded
    path.write_bytes(st_file(json.dumps(GOOD_HEADER).encode("ascii") + b"    ", bytes(40)))
    SafetensorsFile.open(path).close()


@pytest.mark.parametrize("fault", HOSTILE_SAFETENSORS)
def test_hostile_safetensors(tmp_path, fault):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE_SAFETENSORS[fault])
    refused(SafetensorsFile.open, path)


@pytest.mark.parametrize("fault", HOSTILE_SAFETENSORS_TENSOR)
def test_hostile_safetensors_tensor(tmp_path, fault):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE_SAFETENSORS_TENSOR[fault])
    message = refused(SafetensorsFile.open, path)
    assert "a.weight" in message or fault == "an empty tensor inside another"


def test_header_over_the_limit(tmp_path):
    """A file that really has a header of 100,000,001 bytes: refused before it is read."""
    path = tmp_path / "long.safetensors"
    with path.open("wb") as file:
        file.write(number("Q", MAX_HEADER_BYTES + 1) + b"{}")
        file.truncate(8 + MAX_HEADER_BYTES + 1)
    refused(SafetensorsFile.open, path)


def test_safetensors_cut_anywhere():
    for length in range(len(GOOD_SAFETENSORS)):
        with pytest.raises(FormatError):
            read_header(GOOD_SAFETENSORS[:length])


def agrees_with_the_package(data: bytes) -> bool:
    """Refuse, or read what the safetensors package reads: never accept what it refuses.
    Returns whether it is read."""
    try:
        tensors, _ = read_header(data)
    except FormatError:
        return False
    if b"-0" in data:       # JSON's minus zero, which Python takes for the integer 0
        return True
    expected = dict(safetensors.deserialize(bytes(data)))
    assert tensors.keys() == expected.keys()
    for name, info in tensors.items():
        assert ((info.dtype, list(info.shape))
                == (expected[name]["dtype"], expected[name]["shape"]))
        assert data[info.start:info.end] == expected[name]["data"]
        assert read_tensor(data, info).shape == info.shape
    return True


def test_mutated_safetensors():
    """5,000 damaged copies, the size field included."""
    letters = b'0123456789"[]{},:-.eE\\/ \nFIUB\xff'
    rng = random.Random(4)
    read = 0
    for _ in range(5000):
        data = bytearray(GOOD_SAFETENSORS)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(data) - 40)
            data[at:at + rng.randrange(2)] = bytes([rng.choice(letters)])
        if rng.random() < 0.7:      # let the size fit, so that the JSON is looked at
            data[:8] = number("Q", len(data) - 48)
        with frugal():
            read += agrees_with_the_package(bytes(data))
    assert 100 < read < 4900


ODD = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.integers(0, 50),
                st.text(max_size=3), st.sampled_from(NASTY), st.just("F32"),
                st.just("F8_E4M3FN"))
JSON = st.recursive(ODD, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)))
SIZES = st.lists(st.one_of(st.integers(0, 4), st.sampled_from(NASTY), ODD), max_size=3)
ENTRY = st.fixed_dictionaries(
    {},
    optional={"dtype": st.one_of(st.sampled_from(["F32", "BF16", "U8", "I64", "BOOL", "C64",
                                                  "F4", "F6_E2M3"]), JSON),
              "shape": st.one_of(SIZES, JSON),
              "data_offsets": st.one_of(st.lists(st.integers(0, 40), min_size=2, max_size=2),
                                        SIZES, JSON),
              "other": ODD})


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "中", ""]),
                       st.one_of(ENTRY, JSON), max_size=3), st.integers(0, 40))
@settings(max_examples=200, deadline=1000, database=None)
def test_any_header_of_json(header, size):
    agrees_with_the_package(st_file(header, bytes(range(size))))


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), min_size=1,
                 max_size=4)


@given(SPANS, st.integers(0, 12))
@settings(max_examples=400, deadline=1000, database=None)
def test_spans_are_accepted_when_they_tile_the_data(spans, size):
    """Spans of bytes, otherwise right: accepted where they follow each other, first to last."""
    entries = {str(i): tensor([end - begin], begin, end, "U8")
               for i, (begin, end) in enumerate(spans)}
    data = st_file(entries, bytes(size))
    spans = sorted(spans)
    if [begin for begin, _ in spans] + [size] == [0] + [end for _, end in spans]:
        assert len(read_header(data)[0]) == len(spans)
    else:
        with pytest.raises(FormatError):
            read_header(data)


# --- checkpoints of torch.save ----------------------------------------------------------------

def torch_file() -> bytes:
    """A checkpoint with views, shared storages, parameters and attributes."""
    weight = torch.arange(12.0).reshape(3, 4)
    contents = torch.nn.Linear(4, 3).state_dict()
    contents |= {"a.weight": weight, "tied": weight.T, "half": weight.bfloat16()[:, ::2],
                 "f8": torch.ones(3).to(torch.float8_e4m3fn),
                 "parameter": torch.nn.Parameter(torch.ones(2)), "one": torch.tensor(5)}
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getvalue()


def with_program(data: bytes, program: bytes) -> bytes:
    """The same archive with another pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename,
                         program if entry.filename.endswith("/data.pkl") else old.read(entry))
    return file.getvalue()


def test_torch_file_cut_anywhere():
    data = torch_file()
    assert (set(read_everything(data, PickledFile).tensors)
            > {"a.weight", "tied", "half", "f8", "parameter", "one"})
    with frugal(seconds=60):
        for length in range(0, len(data), 3):
            assert not is_read(data[:length], PickledFile)


def test_mutated_torch_file():
    """2,000 damaged copies of the whole archive: names, places, sizes, flags and the pickle."""
    good = torch_file()
    rng = random.Random(5)
    read = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 5])):
            mutate(rng, data, len(data))
        with frugal():
            read += is_read(data, PickledFile)
    assert 100 < read < 1900


def test_mutated_pickle():
    """3,000 damaged pickles in a whole archive;
    instructions are swapped for any other, numbers for extremes."""
    good = torch_file()
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        program = archive.read("archive/data.pkl")
    places = [position for _, _, position in pickletools.genops(program)]
    codes = [instruction.code.encode("latin-1") for instruction in pickletools.opcodes]
    rng = random.Random(6)
    read = 0
    for i in range(3000):
        data = bytearray(program)
        for _ in range(rng.choice([1, 1, 2, 5])):
            if rng.random() < 0.5:
                at = rng.choice(places)
                data[at:at + rng.randrange(2)] = rng.choice(codes)
            else:
                mutate(rng, data, len(data))
        with frugal():
            if i % 3 == 0:
                read += is_read(with_program(good, bytes(data)), PickledFile)
                continue
            try:
                unpickle(data)
                read += 1
            except FormatError:
                pass
    assert 30 < read < 2900


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=1000, database=None)
def test_any_bytes_as_a_pickle(program):
    try:
        unpickle(b"\x80\x02" + program)
    except FormatError:
        pass


# --- no file at all ---------------------------------------------------------------------------

@pytest.mark.parametrize("open_file", [GGUFFile.open, SafetensorsFile.open, PickledFile.open])
def test_not_a_file(tmp_path, open_file):
    (tmp_path / "empty").write_bytes(b"")
    refused(open_file, tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing", tmp_path / "folder", tmp_path / "empty" / "below"):
        with frugal(), pytest.raises(NotAvailableError) as caught:
            open_file(path)
        assert str(path) in caught.value.what and caught.value.why and caught.value.hint
        assert ("folder or a device" in caught.value.why) == (path.name == "folder")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("open_file", [GGUFFile.open, SafetensorsFile.open, PickledFile.open])
def test_a_pipe_is_not_waited_for(tmp_path, open_file):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAvailableError, match="pipe"):
        open_file(tmp_path / "pipe")


# --- What Git leaves in place of a large file -------------------------------------------------

POINTER = (b"version https://git-lfs.github.com/spec/v1\n"
           b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
           b"size 269060552\n")


@pytest.mark.parametrize("open_file, name", [
    (SafetensorsFile.open, "model.safetensors"), (PickledFile.open, "pytorch_model.bin"),
    (GGUFFile.open, "model.gguf"),
    (lambda path: ShardedSafetensors.open(path.parent), "model.safetensors.index.json"),
    (read_json, "config.json"), (read_json, "tokenizer.json")])
def test_a_git_lfs_pointer_is_called_so(tmp_path, open_file, name):
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(NotAvailableError) as error:
        open_file(tmp_path / name)
    assert error.value.what == f"cannot open {tmp_path / name}"
    assert "Git LFS pointer" in error.value.why and "269.1 MB" in error.value.why
    assert "git lfs pull" in error.value.hint and name in error.value.hint


def test_a_pointer_among_shards_and_one_with_other_lines(tmp_path):
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    other = POINTER.splitlines(keepends=True)[0] + b"ext-0-foo sha256:12\n"
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(other)
    with pytest.raises(NotAvailableError, match="00001.safetensors\n.*Git LFS pointer"):
        ShardedSafetensors.open(tmp_path)
