"""A model in several GGUF files, opened as one: part 1 has the settings, all have tensors.

The parts lie in one folder, and their names end in `-00001-of-00003.gguf` and so on. Each is a
GGUF file of its own, and says in `split.no` and `split.count` which one it is.
Source: gguf-split in the llama.cpp repository.
"""

import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.files import names_like
from gearworks.formats.gguf import WRITE_AGAIN, GGUFFile

FETCH_ALL = "fetch all parts again, from one place, into one folder"
MAX_PARTS = 99_999                      # five digits

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a model in GGUF by its file, or by any of its parts.

    Raises NotAvailableError or FormatError, as `GGUFFile.open`, and for a part that is not
    there, or that belongs to another model; both name the part.
    """
    path = Path(path)
    file = GGUFFile.open(path)
    number, count = place_of_part(file)
    if count == 1:
        return file
    file.close()
    paths = paths_of_parts(path, number, count)
    with ExitStack() as opened:
        parts = []
        for place, each in enumerate(paths):
            if not each.exists():
                raise NotAvailableError(f"cannot open {path}",
                                        f"part {place + 1} of {count} is missing: there is no "
                                        f"{each.name} beside it", FETCH_ALL)
            parts.append(opened.enter_context(GGUFFile.open(each)))
            if place_of_part(parts[-1]) != (place, count):
                said = "part {} of {}".format(*np.add(place_of_part(parts[-1]), (1, 0)))
                raise FormatError(f"cannot open {each}",
                                  f"by its name it is part {place + 1} of {count}, and it says "
                                  f"that it is {said}", FETCH_ALL)
        whole = GGUFParts(parts)
        opened.pop_all()
    return whole


def place_of_part(file: GGUFFile) -> tuple[int, int]:
    """Which part of how many a file is, counted from 0; (0, 1) for a whole model."""
    count, number = file.metadata.get("split.count", 1), file.metadata.get("split.no", 0)
    if type(count) is not int or type(number) is not int:
        raise FormatError(f"cannot open {file.path}", "split.no or split.count is not an "
                          "integer", WRITE_AGAIN)
    if count <= 1:
        return 0, 1
    if not 0 <= number < count <= MAX_PARTS:
        raise FormatError(f"cannot open {file.path}", f"it is part {number + 1} of {count}, "
                          "which cannot be", WRITE_AGAIN)
    return number, count


def paths_of_parts(path: Path, number: int, count: int) -> list[Path]:
    """Where all parts are, by the name of one: part `number`, from 0, of `count`.

    >>> paths_of_parts(Path("qwen-00002-of-00002.gguf"), 1, 2)[0].name
    'qwen-00001-of-00002.gguf'
    """
    name = _PART.fullmatch(path.name)
    if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
        raise FormatError(f"cannot open {path}",
                          f"it is part {number + 1} of {count}, and its name does not end in "
                          f"-{number + 1:05}-of-{count:05}.gguf, so the others cannot be found",
                          "give all parts the names that they were published with, or put "
                          "them together with llama.cpp: `llama-gguf-split --merge`")
    return [path.with_name(f"{name[1]}-{part + 1:05}-of-{count:05}.gguf")
            for part in range(count)]


class GGUFParts(GGUFFile):
    """All parts of a model as one GGUF file. `path` and `metadata` are those of part 1, the
    tensors those of all parts; there is no single data section."""

    def __init__(self, parts: list[GGUFFile]):
        """parts: open, in their order. Raises FormatError for parts of different models."""
        self.parts = parts
        self.path, self.version = parts[0].path, parts[0].version
        self.metadata = parts[0].metadata
        self._part_of: dict[str, GGUFFile] = {}
        for part in parts:
            twice = self._part_of.keys() & part.tensors.keys()
            if twice:
                raise FormatError(f"cannot open {part.path}",
                                  f"tensor {min(twice)[:80]!r} is in {len(parts)} parts twice",
                                  FETCH_ALL)
            self._part_of |= dict.fromkeys(part.tensors, part)
        self.tensors = {name: part.tensors[name] for name, part in self._part_of.items()}
        announced = self.metadata.get("split.tensors.count", len(self.tensors))
        if announced != len(self.tensors):
            raise FormatError(f"cannot open {self.path}",
                              f"its {len(parts)} parts have {len(self.tensors)} tensors, and "
                              f"{str(announced)[:40]} are announced", FETCH_ALL)

    def raw(self, name: str) -> np.ndarray:
        """As `GGUFFile.raw`."""
        return self._of(name).raw(name)

    def release(self, name: str) -> None:
        """As `GGUFFile.release`."""
        self._of(name).release(name)

    def close(self) -> None:
        """Let go of all files."""
        for part in self.parts:
            part.close()

    def _of(self, name: str) -> GGUFFile:
        if name not in self._part_of:
            raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                              "no part has a tensor of that name",
                              names_like(name, self.tensors))
        return self._part_of[name]
