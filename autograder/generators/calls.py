"""Calls and scripts of calls: what a check draws, makes anew for each side, and can print.

A case holds values, and recipes of values such as `arrays.Numbers`. A recipe is anything with
`made()`, which gives the value, and `typed()`, the Python that gives it.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autograder.generators.printing import visible

LONG = 24                   # characters of a repetition that are worth writing as one
SMALL = 16                  # elements of an array that are written out


@dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def made(self) -> tuple[list, dict]:
        """The arguments, which nobody else holds."""
        return made([*self.args]), made(dict(self.kwargs))


@dataclass(frozen=True)
class Script:
    """How an object is made, and the methods that are called on it, one after the other."""

    call: Call
    steps: tuple[tuple[str, Call], ...]


def calls(*args: st.SearchStrategy, **kwargs: st.SearchStrategy) -> st.SearchStrategy[Call]:
    """Calls of which each argument is drawn by itself.

    >>> from hypothesis import find
    >>> typed(find(calls(st.lists(st.booleans(), min_size=1), eps=st.just(0.5)), bool), "f")
    'f([False], eps=0.5)'
    """
    return st.builds(Call, st.tuples(*args), st.fixed_dictionaries(kwargs))


def made(value: Any) -> Any:
    """A value of which every recipe is made, and every container is new."""
    if hasattr(value, "made"):
        return value.made()
    if type(value) in (list, tuple, set):
        return type(value)(map(made, value))
    if type(value) is dict:
        return {key: made(item) for key, item in value.items()}
    return copy.deepcopy(value)


def typed(value: Any, name: str = "") -> str:
    """A value as Python that gives it. name: of what a call calls.

    >>> typed(np.array([0.1, 2], np.float32)), typed(Call(("a" * 300,), {"k": 2}), "f")
    ('np.array([0.1, 2.0], np.float32)', "f('a' * 300, k=2)")
    """
    if isinstance(value, Call):
        arguments = [*map(typed, value.args),
                     *(f"{key}={typed(item)}" for key, item in value.kwargs.items())]
        return f"{name}({', '.join(arguments)})"
    if isinstance(value, Script):
        letter = name[:1].lower()
        return "; ".join([f"{letter} = {typed(value.call, name)}",
                          *(typed(call, f"{letter}.{method}") for method, call in value.steps)])
    if hasattr(value, "typed"):
        return value.typed()
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.ndarray):
        return _typed_array(value)
    if isinstance(value, np.generic):
        return f"np.{value.dtype}({value!s})"
    if isinstance(value, (str, bytes)) and len(value) > LONG and len(set(value)) == 1:
        return f"{visible(repr(value[:1]))} * {len(value)}"
    if isinstance(value, str):
        return visible(repr(value))
    if isinstance(value, list):
        return f"[{', '.join(map(typed, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(typed, value))}{',' * (len(value) == 1)})"
    if isinstance(value, set) and value:
        return f"{{{', '.join(sorted(map(typed, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{typed(key)}: {typed(each)}' for key, each in value.items())}}}"
    if dataclasses.is_dataclass(value):
        return _typed_dataclass(value)
    return repr(value)


def _typed_array(array: np.ndarray) -> str:
    if not array.size:
        return f"np.zeros({array.shape}, np.{array.dtype})"
    if array.size > SMALL:
        return f"<{array.dtype} of shape {array.shape}>"

    def nested(part: np.ndarray) -> str:
        return (str(part[()]).replace("inf", "np.inf").replace("nan", "np.nan")
                if part.ndim == 0 else f"[{', '.join(map(nested, part))}]")
    return f"np.array({nested(array)}, np.{array.dtype})"


def _typed_dataclass(value: Any) -> str:
    """What has a default and is as it is by default is not written."""
    arguments = []
    for each in dataclasses.fields(value):
        content, default = getattr(value, each.name), each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        if default is dataclasses.MISSING:
            arguments.append(typed(content))
        elif content != default:
            arguments.append(f"{each.name}={typed(content)}")
    return f"{type(value).__name__}({', '.join(arguments)})"
