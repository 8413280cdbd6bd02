"""Pair by pair, and the file is closed whatever happens."""

from gearworks.weights import (map_names, open_checkpoint, read_into, require_same_head,
                               reserve)


def load_checkpoint(path, progress=iter):
    config, file = open_checkpoint(path)
    try:
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
        weights, places = reserve(config)
        for pair in progress(names.items()):
            read_into(places[pair[0]], file, pair[1], config)
        if config.tie_word_embeddings and "lm_head.weight" in file.tensors:
            require_same_head(file, weights, path)
    finally:
        file.close()
    return config, weights
