"""With sets, one for each kind of mistake."""

from gearworks.errors import ModelError
from gearworks.weights import expected_shapes, gguf_name, is_idle


def name_in_file(found, name, architecture):
    if any(other.startswith("blk.") for other in found):
        return gguf_name(name, architecture)
    prefix = {"GPT2LMHeadModel": "transformer."}.get(architecture, "model.")
    return (name if any(other.startswith(prefix) for other in found)
            else name.removeprefix(prefix))


def map_names(found, config):
    if config.num_hidden_layers > len(found):
        raise ModelError("too few tensors",
                         f"{len(found)} for {config.num_hidden_layers} layers", "is it whole?")
    expected = expected_shapes(config)
    mapped = {name: name_in_file(found, name, config.architecture) for name in expected}
    needed = set(mapped.values())
    allowed = {"lm_head.weight", "output.weight"} if config.tie_word_embeddings else set()
    missing = needed - set(found)
    extra = {name for name in set(found) - needed - allowed if not is_idle(name, config)}
    wrong = {file_name for name, file_name in mapped.items()
             if file_name in found and list(found[file_name]) != list(expected[name])}
    if missing | extra | wrong:
        raise ModelError("not this model's file",
                         f"missing {sorted(missing)}, extra {sorted(extra)}, of another shape "
                         f"{sorted(wrong)}", "compare the configuration")
    return mapped
