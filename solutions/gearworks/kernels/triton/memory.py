"""A GPU's memory in Triton's interpreter: what no kernel may rely on shows there, too.

On a GPU a pointer that leads outside of a tensor reads a neighbour's numbers, or ends the
program, and what a load gives where its mask is false is undefined, unless `other` says it. By
itself the interpreter would read whatever is there, and give zeros.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np


class Guarded:
    """A kernel of the interpreter whose programs keep to the tensors that it is launched with.
    """

    def __init__(self, kernel: Any):
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            with _only(arguments):
                self._kernel[grid](*arguments, **options)
        return launch


@contextmanager
def _only(arguments: Sequence[Any]) -> Iterator[None]:
    """Within it, loads and stores whose mask is true, and that lead outside of the tensors
    among these arguments, raise IndexError; where it is false a load gives `other`, or nan."""
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    tensors = [each for each in arguments if hasattr(each, "data_ptr")]
    begins = np.array([each.data_ptr() for each in tensors], np.uint64)
    sizes = np.array([_nbytes(each) for each in tensors], np.uint64)
    builder = interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def demand(pointers: Any, mask: Any, what: str) -> None:
        asked = np.broadcast_to(pointers.data, np.shape(mask.data))[mask.data]
        # below a tensor the difference wraps round, and is larger than any size
        inside = (asked[:, None].astype(np.uint64) - begins < sizes).any(axis=1)
        if not inside.all():
            raise IndexError(f"{np.sum(~inside)} of the {inside.size} pointers that the mask "
                             f"lets {what} lead outside of the kernel's tensors")

    def guarded_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        demand(pointers, mask, "read")
        loaded = load(pointers, mask, other, *rest)
        if other is None:
            data = np.array(loaded.data)
            undefined = np.nan if data.dtype.kind == "f" else np.iinfo(data.dtype).max
            loaded = TensorHandle(np.where(mask.data, data, data.dtype.type(undefined)),
                                  loaded.dtype)
        return loaded

    def guarded_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        demand(pointers, mask, "write")
        return store(pointers, value, mask, *rest)

    with patch.multiple(builder, create_masked_load=guarded_load,
                        create_masked_store=guarded_store):
        yield


def _nbytes(tensor: Any) -> int:
    """From a tensor's first element to the end of its last one, whatever its strides."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()
