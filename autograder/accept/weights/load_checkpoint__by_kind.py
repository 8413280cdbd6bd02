"""GGUF and Hugging Face apart, tensor by tensor copied to its place."""

from gearworks.formats.gguf import GGUFFile
from gearworks.weights import (require_same_head, gguf_tensor, map_names, open_checkpoint,
                               reserve)


def load_checkpoint(path, progress=iter):
    config, file = open_checkpoint(path)
    try:
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
        weights, places = reserve(config)
        if isinstance(file, GGUFFile):
            def read(name):
                return gguf_tensor(file, name, config)
        else:
            read = file.tensor
        for pair in progress(names.items()):
            places[pair[0]][...] = read(pair[1])
        if config.tie_word_embeddings and "lm_head.weight" in file.tensors:
            require_same_head(file, weights, path)
    finally:
        file.close()
    return config, weights
