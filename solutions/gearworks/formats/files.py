"""A model's files as they are met on disk: mapped, read as JSON, or not what they seem.

What the bytes mean is the subject of the modules beside this one.
"""

import json
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from gearworks.errors import FormatError, NotAvailableError

LFS_POINTER_BYTES = 1024            # a pointer is shorter


def map_file(path: str | Path) -> memoryview:
    """Return a read-only view of a file, mapped into memory: pages are read when touched.

    The mapping lives until the last view of it is gone. A file that somebody cuts off meanwhile
    ends the process: the operating system has no other way to say so. An empty file gives an
    empty view.
    Raises NotAvailableError if there is no such file, it is not a plain file, it may not be
    read, or it is a Git LFS pointer.
    """
    path = Path(path)
    try:
        # Opening a pipe would wait for a writer, so look first.
        if path.exists() and not path.is_file():
            raise NotAvailableError(f"cannot open {path}",
                                    "it is a folder or a device, not a file",
                                    "give the path of the model file itself")
        with path.open("rb") as file:
            refuse_lfs_pointer(path, file.read(LFS_POINTER_BYTES))
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:      # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise NotAvailableError(f"cannot open {path}", reason,
                                "check the path, and that you may read it") from error


def refuse_lfs_pointer(path: Path, start: bytes) -> None:
    """Raise NotAvailableError where a file is Git LFS's note about one that was not fetched.

    start: the file's first `LFS_POINTER_BYTES` bytes, or all of them.
    Source: docs/spec.md in the git-lfs repository.

    >>> refuse_lfs_pointer(Path("model.gguf"), b"GGUF")
    """
    if not start.startswith(b"version https://git-lfs.github.com/spec/"):
        return
    size = re.search(rb"\nsize (\d{1,18})\n", start)
    real = f"the file of {int(size[1]) / 1e6:,.1f} MB" if size else "the file"
    raise NotAvailableError(f"cannot open {path}",
                            f"it is a Git LFS pointer: a few lines of text in place of {real} "
                            "itself, which was not fetched",
                            f"run `git lfs pull` in {path.parent}, or download {path.name} "
                            "from the model's page")


def names_like(name: str, names: Iterable[str]) -> str:
    """What to try where a tensor was asked for by a wrong name: some that are there.

    >>> names_like("model.norm", ["model.norm.weight", "lm_head.weight"])
    'ask for a name that is there, such as model.norm.weight (2 in all)'
    """
    names = list(names)
    near = get_close_matches(name, names, 3) or names[:3]
    return f"ask for a name that is there, such as {', '.join(near)} ({len(names)} in all)"


def let_go(data: memoryview, start: int, end: int) -> None:
    """Tell the operating system that a part of a mapped file is read, and need not stay there.

    data: from `map_file`; start, end: byte offsets. Touched again, the part is read again. Does
    nothing where the system has no such call.
    """
    if (isinstance(data.obj, mmap.mmap) and hasattr(data.obj, "madvise")
        and hasattr(mmap, "MADV_DONTNEED")):
        first = start - start % mmap.PAGESIZE
        data.obj.madvise(mmap.MADV_DONTNEED, first, end - first)


@contextmanager
def whole_file(path: Path, nbytes: int) -> Iterator[BinaryIO]:
    """A file to be written, which appears under its name only when it is complete.

    nbytes: about how many it will have, for the message. An older file stays untouched until
    then, and on any failure nothing is left behind. Raises NotAvailableError if the folder
    cannot be written to or the disk is full.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            # else a power cut could leave the new name with the old disk's zeros
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise NotAvailableError(f"cannot write {path}", error.strerror or str(error),
                                f"check that {path.parent} exists, that you may write there, "
                                f"and that {nbytes / 1e6:,.1f} MB are free") from error
    finally:
        if os.path.exists(unfinished):
            unfinished.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to be filled, which appears under its name only when it is complete.

    Gives the folder that it is until then. On any failure nothing is left behind. Raises
    NotAvailableError if there is something of that name already, or it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if os.path.lexists(path):
            raise NotAvailableError(f"cannot write {path}", "it exists already",
                                    "another name, or delete it first")
        unfinished.mkdir()
        yield unfinished
        os.rename(unfinished, path)
    except OSError as error:
        raise NotAvailableError(f"cannot write {path}", error.strerror or str(error),
                                f"check that {path.parent} exists, that you may write there, "
                                "and that there is room") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_json(path: Path) -> dict:
    """Read a JSON object from a file.
    Raises NotAvailableError or FormatError, with the file's name."""
    try:
        if path.exists() and not path.is_file():     # a pipe or a device could be read for ever
            raise NotAvailableError(f"cannot read {path}", "it is no plain file",
                                    "fetch the model again")
        raw = path.read_bytes()
        refuse_lfs_pointer(path, raw[:LFS_POINTER_BYTES])
        value = json.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise NotAvailableError(f"cannot read {path}", "there is no such file",
                                f"give a complete model folder, or fetch {path.name} to make "
                                f"{path.parent} one") from None
    except OSError as error:
        raise NotAvailableError(f"cannot read {path}", error.strerror or str(error),
                                "check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot read {path}", f"it is not JSON: {error}",
                          "fetch the model again") from None
    if not isinstance(value, dict):
        raise FormatError(f"cannot read {path}", "it does not hold a JSON object",
                          "fetch the model again")
    return value
