"""The cases that strategies draw, kept while a class is graded.

All of a class is graded with the same seeds, so a check draws the same cases for every
submission, and drawing takes hypothesis longer than it takes a check to look at them.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

MOST_LISTS = 1024           # of the cases of one search; a list is some tens of kilobytes


class Draws:
    """Lists of cases, by what they follow from. most: how many are kept, the last used."""

    def __init__(self, most: int = MOST_LISTS):
        self._most = most
        self._lists: OrderedDict[Hashable, list[Any]] = OrderedDict()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block what checks draw comes from here."""
        token = _used.set(self)
        try:
            yield
        finally:
            _used.reset(token)

    def cases(self, told: Hashable, draw: Callable[[], list[Any]]) -> list[Any]:
        """The cases, as nobody has touched them."""
        kept = self._lists.get(told)
        if kept is None:
            kept = self._lists[told] = draw()
            if len(self._lists) > self._most:
                self._lists.popitem(last=False)
        self._lists.move_to_end(told)
        return kept


@dataclass
class _Run:
    """A run of a check: its searches count, so that each has its own cases."""

    check: Hashable
    searches: int = 0


_used: ContextVar[Draws | None] = ContextVar("where drawn cases are kept", default=None)
_run: ContextVar[_Run | None] = ContextVar("the run of a check that is going on", default=None)


@contextmanager
def run_of(check: Hashable) -> Iterator[None]:
    """The block is one run of a check. check: its name and its seed."""
    token = _run.set(_Run(check))
    try:
        yield
    finally:
        _run.reset(token)


def kept_cases(told: Hashable, draw: Callable[[], list[Any]]) -> Iterator[Any] | None:
    """The cases of this run's next search, each a copy of its own; None where nothing is kept.

    told: what they follow from besides the check, its seed and the number of the search.
    """
    draws, run = _used.get(), _run.get()
    if draws is None or run is None:
        return None
    run.searches += 1
    return map(copy.deepcopy, draws.cases((run.check, run.searches, told), draw))
