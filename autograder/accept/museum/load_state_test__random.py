"""With random arrays, under every way to wrap one name."""

import numpy as np

from gearworks.errors import GearworksError


def refuses(load_state, model, state):
    try:
        load_state(model, state)
    except GearworksError:
        return True
    return False


def load_state_test(load_state):
    rng = np.random.default_rng(3)
    model = {"layers.1.attn.v": rng.normal(size=(2, 2)), "norm": rng.normal(size=2)}
    v, norm = rng.normal(size=(2, 2)), rng.normal(size=2)
    for name in ("layers.1.attn.v", "module.layers.1.attn.v",
                 "layers.1._orig_mod.attn._orig_mod.v",
                 "_orig_mod.module.layers.module.1.attn.v"):
        loaded = load_state(dict(model), {"norm": norm, name: v})
        assert (loaded["layers.1.attn.v"] == v).all() and (loaded["norm"] == norm).all(), name
        assert refuses(load_state, model, {name: v})
        assert refuses(load_state, model, {"norm": norm, name: v[:, :1]})
        assert refuses(load_state, model, {"norm": norm, name: v, "nobody": norm})
