"""With pytest's own tools."""

import numpy as np
import pytest

from gearworks.errors import ModelError


def load_state_test(load_state):
    model = {"a.q": np.zeros((3, 2)), "a.norm": np.zeros(3)}
    good = {"_orig_mod.a.module.q": np.ones((3, 2)), "a._orig_mod.norm": np.full(3, 2.0)}
    loaded = load_state(model, good)
    np.testing.assert_array_equal(loaded["a.q"], 1)
    np.testing.assert_array_equal(loaded["a.norm"], 2)
    bad = [{"a.q": np.ones((3, 2))}, good | {"a.k": np.ones(1)},
           good | {"a._orig_mod.norm": np.ones((3, 1))}]
    for state in bad:
        with pytest.raises(ModelError):
            load_state(model, state)
