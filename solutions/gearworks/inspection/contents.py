"""What is in a file or folder of weights, as it stands there: settings, tensors, sizes.

Nothing is decided here; `verdict` says what the engine makes of it.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.files import map_file
from gearworks.formats.gguf import GGUFFile
from gearworks.formats.gguf_parts import GGUFParts, open_gguf
from gearworks.formats.pickled import PickledFile
from gearworks.formats.safetensors import DTYPES, SafetensorsFile
from gearworks.formats.shards import ShardedPickled, ShardedSafetensors
from gearworks.inspection.gguf_table import has_unread_types, read_tables
from gearworks.weights import Checkpoint, open_weights, read_config

FORMATS = {GGUFFile: "GGUF", GGUFParts: "GGUF", SafetensorsFile: "safetensors",
           ShardedSafetensors: "safetensors", PickledFile: "PyTorch", ShardedPickled: "PyTorch"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a file has it. type: the format's name for how its values are stored."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Contents:
    """What a file or folder holds.

    format: such as "safetensors"; files: bytes by name, of those with weights; metadata: GGUF's
    keys, or what config.json says, or the notes of a safetensors file.
    """

    path: Path
    format: str
    files: Mapping[str, int]
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]

    @property
    def values(self) -> int:
        """Numbers in all tensors together."""
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def by_type(self) -> dict[str, tuple[int, int]]:
        """How many tensors of each type there are, and their bytes; the largest first."""
        count = Counter(tensor.type for tensor in self.tensors)
        nbytes = Counter()
        for tensor in self.tensors:
            nbytes[tensor.type] += tensor.nbytes
        return {type: (count[type], size) for type, size in nbytes.most_common()}


def read_contents(path: Path) -> Contents:
    """Look into a GGUF, safetensors or PyTorch file, or into a Hugging Face folder.

    A part of a model in several GGUF files stands for all of them. Raises NotAvailableError or
    FormatError for what is not there, or cannot be read.
    """
    if path.is_dir():
        metadata, file = read_config(path), open_weights(path)
    else:
        try:
            file = _open(path)
        except FormatError:
            if (found := _with_unread_types(path)) is None:
                raise
            return found
        metadata = getattr(file, "metadata", {})
    with closing(file):
        return Contents(path, _format(file), _files(file), dict(metadata),
                        tuple(_stored(name, info) for name, info in file.tensors.items()))


def _open(path: Path) -> Checkpoint:
    """One file, by what it begins with."""
    data = map_file(path)
    if data[:4] == b"GGUF":
        return open_gguf(path)
    if data[:2] == b"PK":                               # a ZIP archive, as torch.save writes
        return PickledFile.open(path)
    if path.suffix == ".json":
        raise FormatError(f"cannot look into {path}", "it is JSON, and holds no tensors",
                          f"its folder, {path.parent}")
    if path.suffix == ".gguf":
        return open_gguf(path)                              # which says what is wrong with it
    return SafetensorsFile.open(path)


def _with_unread_types(path: Path) -> Contents | None:
    """A GGUF file that is refused for the types of its tensors only; else None."""
    if map_file(path)[:4] != b"GGUF":
        return None
    try:
        version, metadata, rows = read_tables(path)
    except FormatError:
        return None
    if not has_unread_types(rows):
        return None
    return Contents(path, f"GGUF, version {version}", {path.name: path.stat().st_size},
                    metadata, tuple(StoredTensor(*row) for row in rows))


def _format(file: Checkpoint) -> str:
    name = FORMATS[type(file)]
    return f"{name}, version {file.version}" if isinstance(file, GGUFFile) else name


def _files(file: Checkpoint) -> dict[str, int]:
    parts = getattr(file, "parts", None) or getattr(file, "shards", {}).values() or [file]
    try:
        return {part.path.name: part.path.stat().st_size for part in parts}
    except OSError as error:                                # taken away meanwhile
        raise NotAvailableError(f"cannot look into {file.path}", error.strerror or str(error),
                                "check that nobody moves the files") from error


def _stored(name: str, info: Any) -> StoredTensor:
    if hasattr(info, "type"):
        return StoredTensor(name, info.type.name, info.shape, info.nbytes)
    return StoredTensor(name, info.dtype, tuple(info.shape),
                        prod(info.shape) * DTYPES[info.dtype].itemsize)
