"""What a check is, and what it can say.

A check is a small function on a *subject* (the learner's function or class), a random generator
with a fresh seed, and oracles: Hugging Face, the reference, a law. The same check runs in the
notebook, in the judge and in pytest; only the subject differs. It passes by returning, and
fails by raising `CheckFailure`, which the `expect_…` functions do with a message of three
parts: what was expected, the first difference, what to look at next. Never the answer.

    @check("attention.attention", points=4, public=True)
    def sees_the_cached_keys(attention, rng):
        \"\"\"With 5 cached keys, the first new token attends to 6 keys, the second to 7.\"\"\"
        ...
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from autograder.reference.names import methods_of, module_of, names_of

# What a learner reads stays readable: no message is longer than this many words.
MESSAGE_WORDS = 160


@dataclass(frozen=True)
class Check:
    """One check of an exercise.

    title: the first paragraph of its docstring, and all that a hidden check shows. always:
    seeds with which it runs in every course, before it runs with one that nobody knows.
    """

    exercise: str
    name: str
    title: str
    points: float
    public: bool
    run: Callable[..., None]
    always: tuple[int, ...] = ()


class CheckFailure(AssertionError):
    """The subject gave something else than was expected.

    expected: of the function, in words. found: the first difference, with values. hint: what to
    look at next. figure: HTML that shows it, for a notebook; a check may add one.
    """

    figure = ""

    def __init__(self, expected: str, found: str, hint: str = ""):
        super().__init__(f"Expected {expected}. Found {found}")
        self.expected, self.found, self.hint = expected, found, hint


def check(exercise: str, *, points: float, public: bool,
          always: tuple[int, ...] = ()) -> Callable[[Callable[..., None]], Check]:
    """Make a function a check of an exercise, named as `autograder.reference.names` has it.

    always: see `Check`; for one whose few random inputs find a known mutant out by chance. With
    seeds that do, the mutant earns the same points in every course.
    """
    def decorate(function: Callable[..., None]) -> Check:
        title = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        if not title or points <= 0:
            raise ValueError(
                f"the check {function.__name__} of {exercise} needs a title and points")
        return Check(exercise, function.__name__, title, points, public, function, always)
    return decorate


def checks_of(exercise: str) -> list[Check]:
    """The checks of an exercise, in their order. Raises LookupError when it has none."""
    module = f"autograder.checks.{exercise.partition('.')[0]}"
    try:
        found = [check for check in _checks_in(module) if check.exercise == exercise]
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        found = []
    if not found:
        raise LookupError(f"there are no checks for {exercise!r}")
    return found


def methods_of_others(exercise: str) -> set[str]:
    """The methods that other exercises write of the class that this one is a part of."""
    known = _checks_in(f"autograder.checks.{exercise.partition('.')[0]}")
    return {method for other in {check.exercise for check in known} - {exercise}
            if (module_of(other), names_of(other)) == (module_of(exercise), names_of(exercise))
            for method in methods_of(other)}


def exercises() -> list[str]:
    """The names of all exercises that have checks, module by module, in the modules' order."""
    package = importlib.import_module("autograder.checks")
    modules = sorted(module.name
                     for module in pkgutil.iter_modules(package.__path__, "autograder.checks."))
    return list(dict.fromkeys(check.exercise for module in modules
                              for check in _checks_in(module)))


def _checks_in(module: str) -> list[Check]:
    return [value for value in vars(importlib.import_module(module)).values()
            if isinstance(value, Check)]
