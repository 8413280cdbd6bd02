"""A learner's attempt at one exercise, and how it is loaded over the reference.

Whoever runs it, the learner's kernel or a worker, loads it in this way. So a check meets the
same subject everywhere: the learner's definition, with the reference's for all others.
"""

import importlib
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.reference.names import home_of, methods_of, module_of, names_of

_KEPT = {"__eq__", "__hash__", "__repr__"}


@dataclass(frozen=True)
class Attempt:
    """What a learner has written of an exercise, as code that runs among its module's names.

    missing: of two names that belong together, the one that is not written. Only the subject
    lacks it: where the learner's own code calls it, it is the reference's. Where it stands is
    no part of it: the same code is the same attempt, whoever handed it in.
    """

    exercise: str
    code: str
    missing: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The short name of its module."""
        return module_of(self.exercise)


def load(attempt: Attempt, *, alone: bool = False) -> list[Any]:
    """The subjects of the attempt's checks; without code they are the reference's.

    alone: whether the engine of this process gives its own version of them to no code but its
    own any more, so that nobody can hand that in. Raises whatever its code raises.
    """
    module = importlib.import_module(home_of(attempt.module))
    namespace = dict(vars(module))
    own = [name for name in names_of(attempt.exercise) if name not in attempt.missing]
    methods = methods_of(attempt.exercise)
    if attempt.code.strip():
        if not methods:                 # of a class that is partly given, the rest stays
            for name in own:
                namespace.pop(name, None)
        if alone:
            for name in own:
                _withdraw(f"{attempt.module}.{name}", getattr(module, name), methods)
    filename = f"<cell of {attempt.exercise}>"
    lines = attempt.code.splitlines(keepends=True)
    linecache.cache[filename] = (len(attempt.code), None, lines, filename)
    exec(compile(attempt.code, filename, "exec", dont_inherit=True), namespace)
    lost = [name for name in own if name not in namespace]
    if lost:
        raise NameError(f"the cell defines no {lost[0]}")
    return [_not_written(f"{attempt.module}.{name}") if name in attempt.missing
            else namespace[name] for name in names_of(attempt.exercise)]


def _withdraw(component: str, original: Any, methods: Sequence[str]) -> None:
    """Put what is not written in place of the engine's own version, wherever it is known.

    What the engine itself calls by that name stays. Compiled functions stay too: whoever calls
    one was compiled together with it.
    """
    if isinstance(original, type):      # it stays, since its values travel
        for name, value in list(vars(original).items()):
            if type(value) is types.FunctionType and name not in _KEPT and (
                    not methods or name in methods):
                setattr(original, name, _for_the_engine(component, value))
    elif type(original) is types.FunctionType:
        stub = _for_the_engine(component, original)
        for module in [module for name, module in list(sys.modules.items())
                       if name.startswith("gearworks.")]:
            for name in [name for name, value in vars(module).items() if value is original]:
                setattr(module, name, stub)


def _for_the_engine(component: str, original: Callable) -> Callable:
    stub = _not_written(component)

    def guarded(*arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_globals
        module = sys.modules.get(caller.get("__name__", ""))
        if module is None or vars(module) is not caller:        # a copy is the learner's
            return stub()
        return original(*arguments, **named)
    return guarded


def _not_written(component: str) -> Callable:
    def stub(*arguments: Any, **named: Any) -> None:
        raise NotImplementedError(f"{component}: write this function")
    return stub
