"""Fields of a model's configuration, each checked when it is read.

They come from a stranger's file. Each function raises ModelError for a value that no model
could have, before anything is computed or reserved with it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gearworks.errors import ModelError


def says_nothing(value: Any) -> bool:
    """Whether a value turns a setting off: null, false, zero, empty, or an array of zeros.

    >>> [says_nothing(value) for value in (None, False, 0.0, "", np.zeros(2), 1, "none", [0])]
    [True, True, True, True, True, False, False, False]
    """
    return not (value.any() if isinstance(value, np.ndarray) else value)


def flag(config: Mapping[str, Any], name: str) -> bool:
    """A setting that is off when it is missing."""
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise bad_config(f"{name} is {value!r:.80}, where true or false is needed")
    return value


def count(config: Mapping[str, Any], name: str) -> int:
    """A number of things, of which there are none when it is missing."""
    value = config.get(name)
    return 0 if value is None or type(value) is int and value == 0 else size(name, value)


def size(name: str, value: Any) -> int:
    """A positive whole number.
    The bound, which no model comes near, keeps products of sizes printable."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**40:
        raise bad_config(f"{name} is {value!r:.80}, where a positive integer is needed")
    return value


def layer_range(layers: Any) -> range:
    """The layers to describe one by one.
    A number in a file must not decide how much memory that takes."""
    if size("num_hidden_layers", layers) > 100_000:
        raise bad_config(f"num_hidden_layers is {layers}, and no model has so many")
    return range(layers)


def require_sizes(config: Any, *names: str) -> None:
    """Refuse a configuration unless each of these attributes is a size."""
    for name in names:
        size(name, getattr(config, name))


def require_positive(config: Any, *names: str) -> None:
    """Refuse a configuration unless each of these is a positive number in float32's range."""
    for name in names:
        value = getattr(config, name)
        if (not isinstance(value, (int, float)) or isinstance(value, bool)
            or not 1e-38 < value < 1e38):
            raise bad_config(f"{name} is {value!r:.80}, where a positive number is needed")


def divide(hidden_size: Any, heads: Any) -> int:
    """The size of one head."""
    if (not isinstance(hidden_size, int) or not isinstance(heads, int) or heads < 1
        or hidden_size % heads):
        raise bad_config(f"a hidden size of {hidden_size!r:.80} does not divide into "
                         f"{heads!r:.80} heads")
    return hidden_size // heads


def bad_config(why: str) -> ModelError:
    """The error to raise for a field that is missing or impossible, with the reason."""
    return ModelError("the model's configuration cannot be used", why,
                      "compare config.json with the one on the model's page, or fetch the "
                      "model again (a GGUF file as a whole: its settings are inside)")


def not_computed(why: str, from_gguf: bool = False) -> ModelError:
    """The error to raise for a setting that this engine cannot honour, with the reason."""
    hint = ("use another model, or run this one with llama.cpp" if from_gguf else
            "use another model, or run this one with transformers; if its publisher says that "
            "it runs without the setting, take that out of config.json")
    return ModelError("the model's configuration cannot be used", why, hint)
