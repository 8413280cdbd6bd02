"""Tries the three namings, and takes the one that fits best."""

from gearworks.errors import ModelError
from gearworks.weights import expected_shapes, gguf_name, is_idle


def faults(names, found, config):
    expected = expected_shapes(config)
    seen = set()
    for name, file_name in names.items():
        seen.add(file_name)
        if file_name not in found:
            yield f"missing: {file_name}"
        elif tuple(found[file_name]) != expected[name]:
            yield f"misshapen: {file_name} {found[file_name]}"
    if config.tie_word_embeddings:
        seen |= {"output.weight", "lm_head.weight"}
    for name in found:
        if name not in seen and not is_idle(name, config):
            yield f"unexpected: {name}"


def map_names(found, config):
    if config.num_hidden_layers > len(found):
        raise ModelError("this cannot be the file",
                         "it has fewer tensors than the model has layers", "look again")
    best, listed = {}, None
    for rename in (lambda name: name,
                   lambda name: name.removeprefix("model.").removeprefix("transformer."),
                   lambda name: gguf_name(name, config.architecture)):
        names = {name: rename(name) for name in expected_shapes(config)}
        problems = list(faults(names, found, config))
        if listed is None or len(problems) < len(listed):
            best, listed = names, problems
    if listed:
        raise ModelError("this is not the file", ", ".join(listed), "which model is it of?")
    return best
