"""With a regular expression, and copies of the arrays."""

import re

import numpy as np

from gearworks.errors import ModelError

WRAPPER = re.compile(r"(?:(?<=\.)|^)(?:module|_orig_mod)\.")


def load_state(parameters, checkpoint):
    def refuse(names):
        raise ModelError("the names do not match", ", ".join(names), "compare them")

    state = dict((WRAPPER.sub("", name), np.array(array)) for name, array in checkpoint.items())
    if state.keys() != parameters.keys():
        refuse(state.keys() ^ parameters.keys())
    if bad := [name for name in state if state[name].shape != parameters[name].shape]:
        refuse(bad)
    return {name: state.pop(name) for name in list(parameters)}
