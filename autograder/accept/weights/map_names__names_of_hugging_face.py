"""Reports whatever is wrong under Hugging Face's names, whatever the file calls it."""

from gearworks.errors import ModelError
from gearworks.weights import expected_shapes, gguf_name, is_idle


def map_names(found, config):
    if config.num_hidden_layers > len(found):
        raise ModelError("these do not fit", "too few tensors", "compare the two")
    expected = expected_shapes(config)
    prefix = "transformer." if config.architecture == "GPT2LMHeadModel" else "model."
    if any(name.startswith("blk.") for name in found):
        in_file = {name: gguf_name(name, config.architecture) for name in expected}
    elif any(name.startswith(prefix) for name in found):
        in_file = {name: name for name in expected}
    else:
        in_file = {name: name.removeprefix(prefix) for name in expected}
    of_hf = {name: hf_name for hf_name, name in in_file.items()}
    wrong = [name for name, stored in in_file.items() if stored not in found]
    wrong += [name for name, stored in in_file.items()
              if stored in found and tuple(found[stored]) != expected[name]]
    for name in found:
        tied_copy = config.tie_word_embeddings and name in ("lm_head.weight", "output.weight")
        if name not in of_hf and not tied_copy and not is_idle(name, config):
            wrong.append(name)
    if wrong:
        raise ModelError("these do not fit", ", ".join(wrong), "compare the two")
    return in_file
