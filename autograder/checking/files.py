"""Files that a check gives to its subject, where the subject's process sees them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_PLACE: ContextVar[Path | None] = ContextVar("place", default=None)


@contextmanager
def files_in(place: Path | None) -> Iterator[None]:
    """Within the block the folders of checks are made there; None is the system's own place."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for a check's files, gone afterwards."""
    with tempfile.TemporaryDirectory(dir=_PLACE.get(), ignore_cleanup_errors=True) as name:
        yield Path(name)
