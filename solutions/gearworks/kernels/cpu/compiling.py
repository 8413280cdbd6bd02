"""How functions of this package are compiled, and where the machine code is kept.

Numba keeps compiled functions beside their source, and looks at that one file only when it asks
whether they are still right. Here a function of one module calls those of others, and the
package may lie where nobody can write. So all of it is kept in a folder of the user's cache
that is named after the content of all these modules.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.codegen import get_host_cpu_features
from platformdirs import user_cache_path

# Sums may be taken in any order and products may be fused with them, which lets loops use
# vectors; nan and infinity keep their meaning, since broken weights must show.
FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def use_whole_registers() -> None:
    """Let loops use AVX-512 at its full width. For some processors LLVM takes half of it, since
    the first of them slowed down; these kernels' vectors are as wide in any case.

    It holds for what Numba compiles in this process, if it has not begun, and if nobody has
    said what features the processor is to have.
    """
    features = get_host_cpu_features()
    if numba.config.CPU_FEATURES is None and "+avx512f" in features.split(","):
        numba.config.CPU_FEATURES = features + ",-prefer-256-bit"


use_whole_registers()


def cache_folder() -> Path:
    """Where machine code of the modules as they are now belongs.
    The environment's NUMBA_CACHE_DIR wins over the user's cache."""
    content = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        content.update(module.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else user_cache_path("gearworks", appauthor=False) / "numba"
    return base / content.hexdigest()[:16]


FOLDER = cache_folder()


class KeptCode(FunctionCache):
    """One function's machine code on disk. Without it a function is compiled again, no more:
    a disk that is full, or a file that was damaged, ends no step."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Numba's own, or None where what is kept cannot be read."""
        try:
            return super().load_overload(signature, context)
        except Exception:                         # damaged bytes may ask pickle for anything
            with suppress(OSError):
                self.flush()
            return None

    def signatures(self) -> list[tuple]:
        """Of what arguments' types there is machine code."""
        try:
            return [signature for signature, *_ in self._cache_file._load_index()]
        except Exception:                                   # as above
            return []

    def save_overload(self, signature: Any, result: Any) -> None:
        """Numba's own, where there is room."""
        with suppress(OSError):
            super().save_overload(signature, result)


def keeps_code(function: Callable) -> bool:
    """Whether there is a place for the machine code of a function."""
    return isinstance(function._cache, KeptCode)


def is_compiled(function: Callable,
                fits: Callable[[tuple], bool] = lambda signature: True) -> bool:
    """Whether machine code of a function is kept, perhaps that of another processor.
    fits: for which of its arguments' types."""
    return keeps_code(function) and any(map(fits, function._cache.signatures()))


def compiled(function: Callable) -> Callable:
    """Compile a function at its first call, and keep the machine code.

    It must not touch Python objects: the interpreter's lock is free while it runs. An index
    outside of an array, or a division by zero, is not noticed.
    """
    return _kept(numba.njit(function, nogil=True, fastmath=FAST_MATH, error_model="numpy"))


def kernel(function: Callable) -> Callable:
    """As `compiled`, for a function that reserves no memory: one that does is refused."""
    return _kept(part_of_another(function))


def part_of_another(function: Callable) -> Callable:
    """As `kernel`, for a part of the kernels that call it: nothing is kept of it alone."""
    # without Numba's runtime nobody counts who holds an array, which takes calls in inner loops
    return numba.njit(function, nogil=True, fastmath=FAST_MATH, error_model="numpy", _nrt=False)


def _kept(function: Callable) -> Callable:
    """A compiled function whose machine code is kept for other processes."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(FOLDER)       # looked at in the next line, and never later
    try:
        function._cache = KeptCode(function.py_func)       # what `enable_caching` does
    except RuntimeError:
        pass                 # no file to which it could belong, or a folder to write in
    finally:
        numba.config.CACHE_DIR = before
    return function
