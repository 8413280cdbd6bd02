"""Part by part, with three lists of what does not fit."""

from gearworks.errors import ModelError


def load_state(parameters, checkpoint):
    loaded, unexpected, misshapen = {}, [], []
    for name, array in checkpoint.items():
        parts = name.split(".")
        for wrapper in ("module", "_orig_mod"):
            while wrapper in parts:
                parts.remove(wrapper)
        own = ".".join(parts)
        if own not in parameters:
            unexpected.append(own)
        elif parameters[own].shape != array.shape:
            misshapen.append(own)
        loaded[own] = array
    missing = [name for name in parameters if name not in loaded]
    if missing + unexpected + misshapen:
        raise ModelError("cannot load",
                         f"missing {missing}, unexpected {unexpected}, misshapen {misshapen}",
                         "look")
    return {name: loaded[name] for name in parameters}
