"""PyTorch's checkpoints (`pytorch_model.bin`, `.pt`, `.pth`), read without PyTorch, never run.

A file is a ZIP archive of stored, that is uncompressed, entries below one folder of any name:
    data.pkl    a pickle of the dictionary of tensors: shapes, strides and dtypes
                (restricted_pickle.py)
    data/0 …    storages: the bytes of one or more tensors, row-major or not, which may overlap
    byteorder   "little"; missing in older files
A transposed weight is stored as it lay in memory, with strides that say so, and tied weights
are stored once.

Left out on purpose: writing, the format of before PyTorch 1.6 (2020), anything but a dictionary
of tensors, checksums.
Source: what torch.save writes, as in torch/serialization.py; APPNOTE.TXT on ZIP archives.
"""

import io
import struct
import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.files import map_file, names_like
from gearworks.formats.restricted_pickle import (FETCH_AGAIN, SAFETENSORS_INSTEAD, SAVE_AGAIN,
                                                 StridedTensor, unpickle)
from gearworks.formats.safetensors import (
    DTYPES, MAX_DIMS, PIECE_VALUES, TensorInfo, read_tensor, read_tensor_into)

MAX_DIRECTORY_BYTES = 2**22    # the archive's table of contents: some 65 bytes for each storage


@dataclass(frozen=True)
class TensorView:
    """Where one tensor lies.

    dtype: a key of safetensors' `DTYPES`; strides: in items; start: byte offset in the file. A
    tensor that is not contiguous has other tensors' bytes, or none's, between its own.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's own values."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the values follow each other, the last axis fastest."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True


def read_directory(data: memoryview) -> dict[str, range]:
    """Read the table of contents of a ZIP archive.
    Returns the place in the file of each entry's bytes, by name.

    Raises FormatError for what is no archive, an entry that is compressed or encrypted (a few
    bytes could claim to be gigabytes) or does not lie inside the file, a name twice, and a
    table beyond `MAX_DIRECTORY_BYTES`.

    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("model/version", b"3")
    >>> read_directory(memoryview(file.getvalue()))
    {'model/version': range(43, 44)}
    """
    try:
        with zipfile.ZipFile(_Bytes(data)) as archive:
            table = archive.infolist()
    except FormatError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, OverflowError,
            struct.error) as error:
        raise FormatError("cannot read the archive's table of contents", str(error),
                          FETCH_AGAIN) from error
    entries = {}
    for entry in table:
        where = f"cannot find entry {entry.filename[:80]!r} of the archive"
        header = (data[entry.header_offset:entry.header_offset + 30] if entry.header_offset >= 0
                  else b"")
        if header[:4] != b"PK\x03\x04" or len(header) < 30:
            raise FormatError(where, f"there is no entry at byte {entry.header_offset}",
                              FETCH_AGAIN)
        if entry.filename in entries:
            raise FormatError(where, "the name occurs twice", SAFETENSORS_INSTEAD)
        method, = struct.unpack("<H", header[8:10])
        if ((method, entry.compress_type, entry.flag_bits & 1) != (0, 0, 0)
            or entry.compress_size != entry.file_size):
            raise FormatError(where, "it is compressed or encrypted, which PyTorch never does",
                              SAVE_AGAIN)
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        if start + entry.file_size > len(data):
            why = (f"it would end at byte {start + entry.file_size}, and the file has "
                   f"{len(data)}")
            raise FormatError(where, why, FETCH_AGAIN)
        entries[entry.filename] = range(start, start + entry.file_size)
    return entries


class _Bytes(io.RawIOBase):
    """Bytes as a file for zipfile, without a copy.
    A read of more than a table of contents is refused."""

    def __init__(self, data: memoryview):
        self._data, self._at = data, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise ValueError(f"there is no byte {start + offset}")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else min(self._at + size, len(self._data))
        if end - self._at > MAX_DIRECTORY_BYTES:
            why = (f"it takes {end - self._at} bytes, and more than {MAX_DIRECTORY_BYTES} are "
                   "not allowed")
            raise FormatError("cannot read the archive's table of contents", why,
                              SAFETENSORS_INSTEAD)
        piece = bytes(self._data[self._at:end])
        self._at += len(piece)
        return piece


def read_tensors(data: memoryview) -> dict[str, TensorView]:
    """Read and check the description of all tensors of a checkpoint.
    data: all bytes of the file.

    Returns a TensorView by name, in the file's order. Raises FormatError for everything that
    `read_directory` and `unpickle` refuse; for a file of another kind; for contents other than
    a dictionary of tensors; and, naming the tensor, for a storage that is missing or of another
    size, sizes or strides below 0, a view that leaves its storage, and one with more values
    than its storage has.

    >>> read_tensors(map_file("pytorch_model.bin"))["model.norm.weight"]        # doctest: +SKIP
    TensorView(dtype='F32', shape=(576,), strides=(1,), start=1408)
    """
    if bytes(data[:2]) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise FormatError("cannot read the checkpoint",
                          "it is a bare pickle, as PyTorch wrote them before version 1.6 "
                          "(2020), not an archive",
                          SAVE_AGAIN)
    entries = read_directory(data)
    programs = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(programs) != 1:
        raise FormatError("cannot read the checkpoint",
                          f"the archive has {len(programs)} entries named data.pkl",
                          "give the path of a PyTorch checkpoint, or use a copy of the model "
                          "in safetensors")
    folder = programs[0].removesuffix("data.pkl")
    order = entries.get(f"{folder}byteorder")
    if order is not None and data[order.start:order.stop] != b"little":
        raise FormatError("cannot read the checkpoint", "it is not little-endian", SAVE_AGAIN)

    contents = unpickle(data[entries[programs[0]].start:entries[programs[0]].stop])
    if type(contents) is not dict:
        raise FormatError("cannot read the checkpoint",
                          f"it holds a value of type {_kind(contents)}, not a dictionary of "
                          "tensors",
                          SAVE_AGAIN)
    tensors = {}
    for name, tensor in contents.items():
        if type(tensor) is not StridedTensor:
            raise FormatError("cannot read the checkpoint",
                              f"its entry {name[:80]!r} is of type {_kind(tensor)}, "
                              "not a tensor", SAVE_AGAIN)
        try:
            tensors[name] = _place(tensor, entries.get(f"{folder}data/{tensor.storage.key}"))
        except FormatError as error:
            raise FormatError(f"cannot place tensor {name[:80]!r}", error.why,
                              error.hint) from error
    return tensors


def _kind(value: object) -> str:
    return "tensor" if type(value) is StridedTensor else type(value).__name__


def _place(tensor: StridedTensor, place: range | None) -> TensorView:
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    if place is None:
        raise FormatError("", f"the archive has no storage {storage.key[:80]!r}", FETCH_AGAIN)
    if storage.size < 0 or storage.size * DTYPES[storage.dtype].itemsize != len(place):
        why = (f"its storage of {storage.size} {storage.dtype} has {len(place)} bytes in the "
               "archive")
        raise FormatError("", why, FETCH_AGAIN)
    itemsize = DTYPES[tensor.dtype].itemsize
    available = len(place) // itemsize
    if (len(shape) != len(strides) or len(shape) > MAX_DIMS
        or min((tensor.offset, *shape, *strides)) < 0):
        raise FormatError("", "its shape, strides and offset do not make a view",
                          SAFETENSORS_INSTEAD)
    # A dimension of 0 must not hide the product of the others: no array library can hold such a
    # shape.
    if prod(max(size, 1) for size in shape) * itemsize >= 2**63:
        raise FormatError("", "its shape overflows 64 bits", SAFETENSORS_INSTEAD)
    if prod(shape) > available:
        why = f"its {prod(shape)} values repeat the {available} of its storage"
        raise FormatError("", why, "use a copy of the model in safetensors")
    if 0 in shape:
        # its offset may lie anywhere
        return TensorView(tensor.dtype, shape, strides, place.start)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if last >= available:
        raise FormatError("", f"it would read value {last} of a storage of {available}",
                          FETCH_AGAIN)
    return TensorView(tensor.dtype, shape, strides, place.start + tensor.offset * itemsize)


def read_view(data: memoryview, view: TensorView, out: np.ndarray | None = None) -> np.ndarray:
    """Return one tensor of a checkpoint, in the dtypes that safetensors' `read_tensor` gives.

    F32 comes back as a read-only view of `data`, contiguous or strided as it was stored; other
    kinds come in new memory where they are widened or are not contiguous. out: of the same
    shape, is filled in pieces and returned.

    >>> read_view(memoryview(bytes([0x80, 0x3F, 0, 0x40, 0xC0, 0x3F])),
    ...           TensorView("BF16", (2,), (2,), 0))
    array([1. , 1.5], dtype=float32)
    """
    if view.is_contiguous:
        info = TensorInfo(view.dtype, view.shape, view.start, view.start + view.nbytes)
        return read_tensor(data, info) if out is None else read_tensor_into(out, data, info)
    dtype = DTYPES[view.dtype]
    stored = np.ndarray(view.shape, dtype, data.toreadonly(), view.start,
                        tuple(stride * dtype.itemsize for stride in view.strides))
    if out is None:
        return stored if view.dtype == "F32" else _read_packed(stored, view.dtype)
    if out.shape != view.shape:
        raise ValueError(f"a tensor of shape {view.shape} does not fit into memory of shape "
                         f"{out.shape}")
    step = max(1, PIECE_VALUES // prod(view.shape[1:]))
    for row in range(0, view.shape[0], step):
        out[row:row + step] = _read_packed(stored[row:row + step], view.dtype)
    return out


def _read_packed(stored: np.ndarray, dtype: str) -> np.ndarray:
    packed = np.ascontiguousarray(stored)
    return read_tensor(packed.reshape(-1).view(np.uint8).data,
                       TensorInfo(dtype, packed.shape, 0, packed.nbytes))


class PickledFile:
    """A torch.save checkpoint, open for reading: a context manager, mapped, every view checked.

    path: where it is; tensors: TensorView by name.

    >>> with PickledFile.open("pytorch_model.bin") as file:         # doctest: +SKIP
    ...     file.tensor("model.norm.weight").shape
    (576,)
    """

    def __init__(self, path: Path, data: memoryview):
        self.path = path
        self.tensors = read_tensors(data)
        self._data: memoryview | None = data

    @classmethod
    def open(cls, path: str | Path) -> "PickledFile":
        """Map the file and check all but the values.
        Raises NotAvailableError or FormatError; both name the file."""
        try:
            return cls(Path(path), map_file(path))
        except FormatError as error:
            raise FormatError(f"cannot open {path}", f"{error.what}: {error.why}",
                              error.hint) from error

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """Return one tensor, as `read_view` gives it.
        Raises FormatError if the file has none of that name."""
        if self._data is None:
            raise ValueError(f"{self.path} is closed")
        if name not in self.tensors:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                              "the file has no tensor of that name",
                              names_like(name, self.tensors))
        return read_view(self._data, self.tensors[name], out)

    def close(self) -> None:
        """Let go of the file.
        Views that `tensor` gave out stay valid: the mapping lives as long as they do."""
        self._data = None

    def __enter__(self) -> "PickledFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
