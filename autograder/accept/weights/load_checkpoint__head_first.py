"""Looks at the head before anything is loaded."""

from contextlib import ExitStack

import numpy as np

from gearworks.errors import ModelError
from gearworks.weights import map_names, open_checkpoint, read_into, reserve


def has_two_heads(file, names):
    if "lm_head.weight" not in file.tensors:
        return False
    return not np.array_equal(file.tensor("lm_head.weight"),
                              file.tensor(names["model.embed_tokens.weight"]))


def load_checkpoint(path, progress=lambda items: items):
    with ExitStack() as stack:
        config, file = open_checkpoint(path)
        stack.callback(file.close)
        names = map_names({name: tuple(info.shape) for name, info in file.tensors.items()},
                          config)
        if config.tie_word_embeddings and has_two_heads(file, names):
            raise ModelError(f"cannot load {path}", "its head is not its embedding",
                             "untie it in config.json")
        weights, places = reserve(config)
        for name, file_name in progress([*names.items()]):
            read_into(places[name], file, file_name, config)
        return config, weights
