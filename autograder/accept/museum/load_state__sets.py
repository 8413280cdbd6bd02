"""By sets of names with shapes."""

from gearworks.errors import ModelError
from gearworks.museum import WRAPPERS


def stripped(name):
    return ".".join(filter(lambda part: part not in WRAPPERS, name.split(".")))


def load_state(parameters, checkpoint):
    state = {stripped(name): array for name, array in checkpoint.items()}
    wanted = {(name, array.shape) for name, array in parameters.items()}
    given = {(name, array.shape) for name, array in state.items()}
    if wanted != given:
        raise ModelError("not this model", f"these differ: {sorted(wanted ^ given)}",
                         "is it the right checkpoint?")
    return dict(zip(parameters, map(state.__getitem__, parameters)))
