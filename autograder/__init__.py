"""The autograder: every edition from one source, every grade from one set of checks."""

from typing import Any

__all__ = ["check", "progress"]


def __getattr__(name: str) -> Any:
    """What a notebook calls; read when it is asked for, so that the command starts at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autograder import notebook
    return getattr(notebook, name)
