"""What is no `Exception` and yet belongs to one request: a panic in a library written in Rust,
`sys.exit` in a learner's gear. asyncio ends its loop for the latter, and with it all others.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

OURS = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@contextmanager
def contained() -> Iterator[None]:
    """Raise a RuntimeError in the place of what is neither an error nor how coroutines end.

    >>> with contained():
    ...     raise SystemExit(3)
    Traceback (most recent call last):
        ...
    RuntimeError: SystemExit: 3
    """
    try:
        yield
    except OURS:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
