"""Settings: values that are not the usual ones, and the falsy ones that are not the same."""

from typing import Any

from hypothesis import strategies as st

EPS = st.sampled_from([1e-5, 1e-6, 1e-3, 0.25, 1e-12])


def switches(*names: str) -> st.SearchStrategy[dict[str, bool]]:
    """Every switch on or off."""
    return st.fixed_dictionaries({name: st.booleans() for name in names})


def some(**values: st.SearchStrategy) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keyword arguments; those that are left out have their defaults.

    >>> from hypothesis import find
    >>> find(some(eps=st.just(1), window=st.just(2)), lambda found: [*found] == ["window"])
    {'window': 2}
    """
    return st.fixed_dictionaries({}, optional=values)
