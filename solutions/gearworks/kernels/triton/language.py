"""Triton as the kernels use it: `triton` and `tl`, on a GPU or in its interpreter.

Triton compiles for GPUs of compute capability 8.0 and later. Elsewhere it has an interpreter,
which runs a kernel one program after the other, in NumPy: the same results, and no speed; what
a GPU leaves undefined shows there (see `memory`). Where Triton is not installed (it exists for
Linux only), kernels can be imported, and not run.
"""

import os
import sys
from collections.abc import Callable
from functools import update_wrapper
from types import SimpleNamespace
from typing import Any

import numpy as np

from gearworks.errors import NotAvailableError
from gearworks.kernels.triton import has_triton_gpu
from gearworks.kernels.triton.memory import Guarded

try:
    import torch
except ImportError:
    torch = None


def _interpreter() -> None:
    """See to it that Triton is imported with its interpreter.

    Triton looks at the environment when it is imported, and others import it too (torch's
    compiler does). One that was imported for a GPU that is not here is taken out, so that it is
    imported anew; whoever has it keeps it. Its compiled part cannot be loaded twice, and stays.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")
    loaded = sys.modules.get("triton.language")
    if loaded is not None and type(loaded.max).__name__ != "InterpretedFunction":
        for name in [name for name in sys.modules if name.split(".")[0] == "triton"
                     and not name.startswith("triton._C")]:
            del sys.modules[name]


if not has_triton_gpu():
    _interpreter()
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = SimpleNamespace(jit=lambda function: function)
    tl = SimpleNamespace(constexpr=None)


def level() -> str:
    """Where kernels run: "GPU" or "interpreter".

    Raises NotAvailableError where they cannot.
    """
    if not hasattr(tl, "dot") or torch is None:
        raise NotAvailableError("cannot run a Triton kernel",
                                "Triton is not installed here; it exists for Linux only",
                                "on Linux: pip install triton torch; Colab has both")
    return "interpreter" if type(tl.max).__name__ == "InterpretedFunction" else "GPU"


def level_in_words() -> str:
    """A sentence for reports: where kernels run here, and why."""
    try:
        where = level()
    except NotAvailableError as error:
        return f"Level: none. {error.why[0].upper()}{error.why[1:]}."
    if where == "GPU":
        return f"Level: GPU. Compiled by Triton, on one {torch.cuda.get_device_name()}."
    return ("Level: interpreter. Run by Triton's interpreter on the processor; there is no GPU "
            "of compute capability 8.0 or later here.")


class Launched:
    """A kernel, and how to launch it: called with tensors, it returns a tensor.

    NumPy arrays are taken to where kernels run, and the result is one.
    """

    def __init__(self, launcher: Callable[..., Any], kernel: Any):
        self.launcher, self.kernel = launcher, kernel
        update_wrapper(self, getattr(kernel, "fn", kernel))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As the launcher says. Raises NotAvailableError where kernels cannot run."""
        where = level()
        function = self.kernel.fn
        if where == "GPU" and "NotImplementedError" in function.__code__.co_names:
            # one that is not written yet: the compiler would complain of its `raise`
            function(*[None] * function.__code__.co_argcount)
        is_numpy = isinstance(arguments[0], np.ndarray)
        if is_numpy:
            arguments = [_tensor(each, where) if isinstance(each, np.ndarray) else each
                         for each in arguments]
        # the interpreter gives a kernel's module whatever name it lacks, its own __file__ too;
        # in a notebook new processes would then take that for the program that started them
        lacking = {"__file__", "__cached__"} - function.__globals__.keys()
        try:
            result = self.launcher(Guarded(self.kernel) if where == "interpreter"
                                   else self.kernel, *arguments, **options)
        except Exception as error:
            # the interpreter wraps what the kernel raised, and hides its line
            if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
                raise error.__cause__ from None
            raise
        finally:
            for name in lacking:
                function.__globals__.pop(name, None)
        return result.cpu().numpy() if is_numpy else result


def launched_by(launcher: Callable[..., Any]) -> Callable[[Any], Launched]:
    """Makes a function of a kernel: `launcher(kernel, *arguments)` allocates what it writes to,
    launches as many programs as it takes, and returns the result."""
    return lambda kernel: Launched(launcher, kernel)


def _tensor(array: np.ndarray, where: str) -> Any:
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()                          # torch takes no other
    return torch.from_numpy(array).to("cuda" if where == "GPU" else "cpu")
