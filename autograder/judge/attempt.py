"""A learner's attempt at one exercise, and how it is loaded over the reference.

Whoever runs it, the learner's kernel or a worker, loads it in this way. So a check meets the
same subject everywhere: the learner's definition, with the reference's for all others.
"""

import importlib
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autograder.reference.names import home_of, module_of, names_of


@dataclass(frozen=True)
class Attempt:
    """What a learner has written of an exercise, as code that runs among its module's names.

    place: where it stands, such as "04_transformer.ipynb, cell 31". missing: of two names that
    belong together, the one that is not written. Only the subject lacks it: where the learner's
    own code calls it, it is the reference's.
    """

    exercise: str
    code: str
    place: str = ""
    missing: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The short name of its module."""
        return module_of(self.exercise)


def load(attempt: Attempt) -> list[Any]:
    """The subjects of the attempt's checks. Raises whatever its code raises."""
    module = importlib.import_module(home_of(attempt.module))
    namespace = dict(vars(module))
    filename = f"<cell of {attempt.place or attempt.exercise}>"
    lines = attempt.code.splitlines(keepends=True)
    linecache.cache[filename] = (len(attempt.code), None, lines, filename)
    exec(compile(attempt.code, filename, "exec", dont_inherit=True), namespace)
    return [_not_written(f"{attempt.module}.{name}") if name in attempt.missing
            else namespace[name] for name in names_of(attempt.exercise)]


def _not_written(component: str) -> Callable:
    def stub(*arguments: Any, **named: Any) -> None:
        raise NotImplementedError(f"{component}: write this function")
    return stub
