"""Takes apart the archives that platforms and learners make of notebooks.

An archive is told by its bytes, whatever it is called. Nothing is written to the disk, so no
path in an archive leads anywhere.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

MARK = b"PK\x03\x04"
MOST_BYTES = 500 * 2**20        # of all that an archive holds: more is no homework
MOST_DEPTH = 2                  # archives within archives


class ArchiveError(Exception):
    """An archive that cannot be taken apart, and why."""


def is_archive(data: bytes) -> bool:
    return data.startswith(MARK)


def unpacked(data: bytes, depth: int = 1) -> Iterator[tuple[str, bytes]]:
    """The files in an archive and in archives in it: path and bytes, by path.

    What no learner made is passed over (see `is_by_the_way`). Raises ArchiveError.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = sorted((entry for entry in archive.infolist() if not entry.is_dir()
                              and not is_by_the_way(entry.filename)),
                             key=lambda entry: entry.filename)
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise ArchiveError(f"holds more than {MOST_BYTES >> 20} MB")
            for entry in entries:
                content = archive.read(entry)
                if is_archive(content):
                    if depth == MOST_DEPTH:
                        raise ArchiveError("holds archives in archives in archives")
                    yield from unpacked(content, depth + 1)
                else:
                    yield entry.filename, content
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
            ValueError, OSError) as error:
        raise ArchiveError(f"is damaged or locked ({error})") from None


def is_by_the_way(path: str) -> bool:
    """Whether a path is of what programs leave beside files: hidden, checkpoints, macOS's."""
    return any(part.startswith((".", "__")) for part in PurePosixPath(path).parts)
