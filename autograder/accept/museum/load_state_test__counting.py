"""Counts how many parameters still have the numbers that they began with."""

import numpy as np

from gearworks.errors import ModelError


def load_state_test(load_state):
    names = [f"layers.{n}.attn.{part}" for n in range(3) for part in ("q", "k")]
    model = {name: np.full((4, 2), -1.0) for name in names}
    state = {name.replace("attn", "module.attn._orig_mod"): np.full((4, 2), float(n))
             for n, name in enumerate(names)}
    loaded = load_state(model, state)
    random = [name for name, array in loaded.items() if (array < 0).any()]
    assert not random, random
    assert [array[0, 0] for array in loaded.values()] == [0, 1, 2, 3, 4, 5]
    first = next(iter(state))
    faults = 0
    for change in ({first: np.ones((2, 4))}, {"extra": np.ones(1)}, None):
        broken = ({**state, **change} if change
                  else {name: state[name] for name in state if name != first})
        try:
            load_state(model, broken)
        except ModelError:
            faults += 1
    assert faults == 3
