"""A checkpoint in several files, read as one: the index says which file holds which tensor.

The index is a JSON object:
{"metadata": {…}, "weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}.
Its files lie in its own folder. Sums in "metadata" are not checked: they are wrong in many
published models.
Source: what save_pretrained of Hugging Face's transformers writes.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.files import map_file, names_like
from gearworks.formats.pickled import PickledFile, TensorView
from gearworks.formats.safetensors import (
    MAX_HEADER_BYTES, SafetensorsFile, TensorInfo, parse_strict_json)

FETCH_AGAIN = "fetch the index and all its files again, from one place"

# no folder, no drive, nothing hidden
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def read_index(raw: bytes | memoryview) -> dict[str, str]:
    """Read the index of a checkpoint in several files. raw: its bytes.
    Returns the file's name by tensor name.

    Raises FormatError for what `parse_strict_json` refuses (a tensor named twice included), an
    index without a "weight_map" of strings, and a file name that is anything but a name in the
    index's own folder.

    >>> read_index(b'{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}')
    {'model.norm.weight': 'model-00001-of-00002.safetensors'}
    """
    if len(raw) > MAX_HEADER_BYTES:
        raise FormatError("cannot read the index",
                          f"it has {len(raw)} bytes, and more than {MAX_HEADER_BYTES} are not "
                          "allowed", FETCH_AGAIN)
    index = parse_strict_json(raw, "the index")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not isinstance(index.get("metadata", {}), dict):
        raise FormatError("cannot read the index",
                          "it must hold an object under weight_map, and one or none under "
                          "metadata", FETCH_AGAIN)
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or not _FILE_NAME.fullmatch(file_name):
            why = (f"it places tensor {name[:80]!r} in {str(file_name)[:80]!r}, which is no "
                   "name of a file beside it")
            raise FormatError("cannot read the index", why,
                              "do not use this model: its index reaches elsewhere")
    return weight_map


class _Shards:
    """The files that an index names, open for reading as one: a context manager.

    path: the index; tensors: as a single file has them, in the index's order; shards: the open
    files by name.
    """

    index_name: str
    open_shard: Callable[[Path], SafetensorsFile | PickledFile]

    def __init__(self, path: Path, weight_map: dict[str, str]):
        self.path = path
        self.shards = {file_name: self.open_shard(path.parent / file_name)
                       for file_name in dict.fromkeys(weight_map.values())}
        self._weight_map = weight_map
        self._check_contents()
        self.tensors: dict[str, TensorInfo | TensorView] = {
            name: self.shards[file_name].tensors[name]
            for name, file_name in weight_map.items()}

    @classmethod
    def open(cls, folder: str | Path):
        """Open the index in `folder` and all its files, which must hold what it says, no more.

        Raises NotAvailableError for an index or a file that is not there, FormatError for one
        that is damaged or has other tensors than the index says; both name the file. No tensor
        is read.
        """
        path = Path(folder) / cls.index_name
        try:
            weight_map = read_index(map_file(path))
        except FormatError as error:
            raise FormatError(f"cannot open {path}", f"{error.what}: {error.why}",
                              error.hint) from error
        return cls(path, weight_map)

    def _check_contents(self) -> None:
        for name, file_name in self._weight_map.items():
            if name not in self.shards[file_name].tensors:
                why = f"it places tensor {name[:80]!r} in {file_name}, which has no such tensor"
                raise FormatError(f"cannot open {self.path}", why, FETCH_AGAIN)
        for file_name, shard in self.shards.items():
            for name in shard.tensors:
                place = self._weight_map.get(name, "no file")
                if place != file_name:
                    why = (f"{file_name} has a tensor {name[:80]!r}, which the index places in "
                           f"{place}")
                    raise FormatError(f"cannot open {self.path}", why, FETCH_AGAIN)

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """Return one tensor, as its file gives it.
        Raises FormatError if the index has none of that name."""
        if name not in self.tensors:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                              "the index has no tensor of that name",
                              names_like(name, self.tensors))
        return self.shards[self._weight_map[name]].tensor(name, out)

    def close(self) -> None:
        """Let go of all files. Views that `tensor` gave out stay valid."""
        for shard in self.shards.values():
            shard.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class ShardedSafetensors(_Shards):
    """A folder whose `model.safetensors.index.json` names several safetensors files.

    >>> with ShardedSafetensors.open("folder") as file:         # doctest: +SKIP
    ...     file.tensor("model.norm.weight").shape
    (4096,)
    """

    index_name = "model.safetensors.index.json"
    open_shard = staticmethod(SafetensorsFile.open)

    def raw(self, name: str) -> np.ndarray:
        """One tensor as it is stored, as `SafetensorsFile.raw` gives it."""
        return self.shards[self._weight_map[name]].raw(name)


class ShardedPickled(_Shards):
    """A folder whose `pytorch_model.bin.index.json` names several checkpoints of torch.save.

    >>> with ShardedPickled.open("folder") as file:             # doctest: +SKIP
    ...     file.tensor("model.norm.weight").shape
    (4096,)
    """

    index_name = "pytorch_model.bin.index.json"
    open_shard = staticmethod(PickledFile.open)
