"""Takes each name that it understands out of a copy;
what is left at the end was not expected."""

from gearworks.errors import ModelError
from gearworks.weights import expected_shapes, gguf_name


def map_names(found, config):
    problems = []
    if len(found) < config.num_hidden_layers:
        raise ModelError("cannot map the names", "there are more layers than tensors",
                         "fetch the file again")
    left = dict(found)
    stem = "transformer" if "GPT2" in config.architecture else "model"
    if "token_embd.weight" in left or any(name.startswith("blk.") for name in left):
        def rename(name):
            return gguf_name(name, config.architecture)
    elif any(name.partition(".")[0] == stem for name in left):
        rename = str
    else:
        def rename(name):
            return name[len(stem) + 1:] if name.startswith(stem + ".") else name
    names = {}
    for name, shape in expected_shapes(config).items():
        names[name] = rename(name)
        try:
            stored = left.pop(names[name])
        except KeyError:
            problems.append(f"{names[name]} is missing")
        else:
            if tuple(stored) != shape:
                problems.append(f"{names[name]} has the shape {stored}, not {shape}")
    for name in left:
        is_copy = config.tie_word_embeddings and name in ("lm_head.weight", "output.weight")
        ends = (".attn.bias", ".attn.masked_bias") if stem == "transformer" else ("inv_freq",)
        if not is_copy and not name.endswith(ends):
            problems.append(f"{name} is unexpected")
    if problems:
        raise ModelError("cannot map the names", "\n".join(problems),
                         "is this the right configuration?")
    return names
