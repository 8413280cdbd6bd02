"""Goes through the places, not through the names, with the open file as a context manager."""

import numpy as np

from gearworks.errors import ModelError
from gearworks.weights import map_names, open_checkpoint, read_into, reserve


def load_checkpoint(path, progress=iter):
    config, opened = open_checkpoint(path)
    with opened as file:
        shapes = dict((name, file.tensors[name].shape) for name in file.tensors)
        file_names = map_names(shapes, config)
        weights, places = reserve(config)
        for name in progress(list(places)):
            read_into(places[name], file, file_names[name], config)
        if config.tie_word_embeddings and "lm_head.weight" in shapes:
            head = file.tensor("lm_head.weight")
            if head.shape != weights.embed_tokens.shape or (head != weights.embed_tokens).any():
                raise ModelError("two heads", "the model is tied and has a head of its own",
                                 "which one is right?")
    assert isinstance(weights.norm, np.ndarray)
    return config, weights
