"""Inputs that are wider than those that checks draw: each argument of a real call, varied.

Of a class these are scripts: an object that a check made, and what it called on it; with one
argument varied, or with one call left out, made twice, or before the one that it came after.

What a docstring leaves undefined is among them. So where the reference raises anything but an
error of its own, a call says nothing; and where it gives a result, somebody has to judge
whether that is promised. What is the same for all of them, is the same.
"""

import copy
import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checking import Check
from autograder.checking.running import collected_remarks, run_check
from autograder.judge.wire import encode
from autograder.processes.limits import TimeLimit, time_limit
from gearworks.errors import GearworksError

MOST = 400                  # calls that are kept
REAL = 60                   # and real ones that they are made of
SECONDS = 0.3               # of processor time that the reference may take for one
LARGEST = 20_000            # bytes of an argument that is varied
STEPS = 40                  # of a script that are kept


Result = tuple[str, Any, tuple, dict]


@dataclass(frozen=True)
class WideCall:
    """A call of one of an exercise's functions: which, and with what."""

    subject: int
    args: tuple
    kwargs: dict

    def result(self, subjects: Sequence[Callable]) -> Result:
        """How the call ends, with what, and what became of the arguments."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        with np.errstate(all="ignore"), collected_remarks():
            return (*_attempted(subjects[self.subject], args, kwargs), args, kwargs)

    def defined(self, subjects: Sequence[Callable]) -> "WideCall | None":
        """The call, or None where the reference promises nothing about it."""
        return None if self.result(subjects)[0] == "raises" else self

    def varied(self, subject: Any) -> Iterator["WideCall"]:
        """The same call, each time with another value for one of its arguments."""
        for args, kwargs in _other_arguments(self.args, self.kwargs, subject):
            yield dataclasses.replace(self, args=args, kwargs=kwargs)

    def rounded(self, count: int) -> Iterator["WideCall"]:
        """The same call so many times, its floating-point numbers a rounding away."""
        for seed in range(count):
            rng = np.random.default_rng(seed)
            yield dataclasses.replace(self, args=_rounded(self.args, rng),
                                      kwargs=_rounded(self.kwargs, rng))

    def __str__(self) -> str:
        return f"{self.args} {self.kwargs}"


@dataclass(frozen=True)
class WideScript(WideCall):
    """An object of one of an exercise's classes, and the methods that are called on it."""

    steps: tuple[tuple[str, tuple, dict], ...] = ()

    def result(self, subjects: Sequence[type]) -> Result:
        """How each step ends, and with what; the first is that the object is made."""
        args, kwargs, steps = copy.deepcopy((self.args, self.kwargs, self.steps))
        with np.errstate(all="ignore"), collected_remarks():
            ending, target = _attempted(subjects[self.subject], args, kwargs)
            if ending != "gives":
                return ending, target, args, kwargs
            ends = []
            for name, *given in steps:
                ends.append(_attempted(getattr(target, name), *given))
                ends[-1] = copy.deepcopy(ends[-1])         # what is returned may change later
        return "gives", ends, (), {}

    def defined(self, subjects: Sequence[type]) -> "WideScript | None":
        """The script as far as the reference promises something; None where that is not far."""
        ending, ends, *_ = self.result(subjects)
        if ending != "gives":
            return None if ending == "raises" else self
        far = next((at for at, (how, _) in enumerate(ends) if how == "raises"), len(ends))
        return dataclasses.replace(self, steps=self.steps[:far]) if far else None

    def varied(self, subject: Any) -> Iterator["WideScript"]:
        """The same script with one thing changed."""
        yield from super().varied(subject)
        for at, (name, *given) in enumerate(self.steps):
            before, step, after = self.steps[:at], self.steps[at:at + 1], self.steps[at + 1:]
            others = [(*before, *after), (*before, *step, *step, *after),
                      (*before, *after[:1], *step, *after[1:])]
            others += [(*before, (name, *other), *after)
                       for other in _other_arguments(*given, getattr(subject, name))]
            for steps in others:
                yield dataclasses.replace(self, steps=steps)

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *(f"{name}{args}{kwargs or ''}"
                                               for name, args, kwargs in self.steps)])


def _attempted(function: Callable, args: tuple, kwargs: dict) -> tuple[str, Any]:
    # what is compiled checks no bounds, and would write wherever an odd size leads
    function = getattr(function, "py_func", function)
    try:
        value = function(*args, **kwargs)
        return "gives", list(value) if isinstance(value, Iterator) else value
    except GearworksError as error:
        return "refuses", type(error).__name__
    except Exception as error:
        return "raises", type(error).__name__


def wide_calls(checks: Sequence[Check], subjects: Sequence[Any], seed: int) -> list[WideCall]:
    """Calls and scripts like those of the checks, in each of which one thing is another one.

    The reference gives a result, or refuses, in all of them, and soon.
    """
    real = _real_calls(checks, subjects, seed)
    rng = random.Random(seed)
    found: list[WideCall] = []
    varied = [call for each in rng.sample(real, min(len(real), REAL))
              for call in each.varied(subjects[each.subject])]
    rng.shuffle(varied)
    for call in varied:
        try:
            with time_limit(SECONDS):
                defined = call.defined(subjects)
        except (TimeLimit, Exception):         # such as an argument that cannot be copied
            continue
        if defined is not None:
            found.append(defined)
        if len(found) == MOST:
            break
    return found


def _real_calls(checks: Sequence[Check], subjects: Sequence[Any],
                seed: int) -> list[WideCall]:
    """What checks call, as far as all that is given travels by value."""
    calls: list[WideCall] = []

    def spy(index: int) -> Callable:
        def called(*args: Any, **kwargs: Any) -> Any:
            if _is_value((args, kwargs)):
                calls.append(WideCall(index, *copy.deepcopy((args, kwargs))))
            return subjects[index](*args, **kwargs)
        return called

    scripts: list[_Scripts] = []
    for check in checks:
        scripts += [_Scripts(index) for index in range(len(subjects))]
        spies = [each.spy(subject) if isinstance(subject, type) else spy(each.index)
                 for each, subject in zip(scripts[-len(subjects):], subjects)]
        with collected_remarks():
            run_check(check, spies, seed, seconds=20)
    return calls + [script for each in scripts for script in each.found()]


class _Scripts:
    """The objects that are made of a class, and the public methods that are called on them."""

    def __init__(self, index: int):
        self.index = index
        self._made: list[tuple[tuple, dict, list]] = []
        self._inside = 0                                    # of a method that calls others

    def spy(self, subject: type) -> type:
        """A class like this one, of which every object is noted."""
        scripts = self

        def init(target: Any, *args: Any, **kwargs: Any) -> None:
            note = scripts._note(args, kwargs)
            target.__dict__["_noted"] = [] if note else None
            if note:
                scripts._made.append((*note, target.__dict__["_noted"]))
            with scripts._deeper():
                subject.__init__(target, *args, **kwargs)

        def spied(name: str, method: Callable) -> Callable:
            def called(target: Any, *args: Any, **kwargs: Any) -> Any:
                steps = target.__dict__.get("_noted")
                if not scripts._inside and steps is not None:
                    note = scripts._note(args, kwargs)
                    if note:
                        steps.append((name, *note))
                    else:                               # from here on nobody can follow
                        target.__dict__["_noted"] = None
                with scripts._deeper():
                    return method(target, *args, **kwargs)
            return called

        methods = {name: spied(name, method) for name, method in inspect.getmembers(
                   subject, inspect.isfunction) if not name.startswith("_")}
        return type(subject.__name__, (subject,), {"__init__": init} | methods)

    def found(self) -> list[WideScript]:
        return [WideScript(self.index, args, kwargs, tuple(steps[:STEPS]))
                for args, kwargs, steps in self._made if steps]

    def _note(self, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        return copy.deepcopy((args, kwargs)) if _is_value((args, kwargs)) else None

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


class _Handle(Exception):
    """Something that does not travel by value."""


def _is_value(value: Any) -> bool:
    def refuse(part: Any) -> None:
        raise _Handle
    try:
        encode(value, [], refuse, identity=True)
    except Exception:
        return False
    return True


def _rounded(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        eps = np.finfo(value.dtype).eps
        return (value * (1 + eps * rng.choice([-1, 0, 1], value.shape))).astype(value.dtype)
    if type(value) is float:
        return value * (1 + float(rng.choice([-1e-7, 0, 1e-7])))
    if type(value) in (list, tuple):
        return type(value)(_rounded(item, rng) for item in value)
    if type(value) is dict:
        return {key: _rounded(item, rng) for key, item in value.items()}
    return copy.deepcopy(value)


def _other_arguments(args: tuple, kwargs: dict,
                     subject: Any) -> Iterator[tuple[tuple, dict]]:
    """Arguments of which one is another one; None only where the signature has it."""
    try:
        parameters = [*inspect.signature(subject).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    places = [*range(len(args)), *kwargs]
    for place in places:
        value = args[place] if isinstance(place, int) else kwargs[place]
        parameter = next((each for at, each in enumerate(parameters)
                          if place in (at, each.name)), None)
        none = parameter is None or _may_be_none(parameter)
        for other in variations(value, none):
            yield (((*args[:place], other, *args[place + 1:]), kwargs)
                   if isinstance(place, int) else (args, kwargs | {place: other}))


def _may_be_none(parameter: inspect.Parameter) -> bool:
    said = parameter.annotation
    return (said is inspect.Parameter.empty or "None" in str(said) or "Any" in str(said)
            or parameter.default is None)


def variations(value: Any, none: bool = True) -> Iterator[Any]:
    """Values of the same kind that are easily forgotten. none: whether None is among them.

    >>> [*variations(3)]
    [4, 2, 0, 33, 50000, None]
    >>> [*variations(None)]
    [0, False, 1]
    """
    match value:
        case np.ndarray() if value.nbytes <= LARGEST:
            yield from _arrays(value)
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, 0, 11 * value, 50_000)
            if none:
                yield None
        case float():
            yield from (2 * value, 0.0, 1.0, -value)
        case str():
            yield from ("", value * 2, value + "’e\u0301", "\ufeff" + value, " " + value,
                        value + "\r\n", value.upper(), value[:-1], value[::-1])
        case bytes():
            yield from (b"", value[:-1], value + b"\xe0\xb8", value * 2)
        case None:
            yield from (0, False, 1)
        case list() | tuple():
            for other in (value[:0], value[:-1], value[:1], value[::-1], value + value):
                yield other
            for at in {0, len(value) - 1} if value else ():
                for other in variations(value[at], none):
                    yield type(value)([*value[:at], other, *value[at + 1:]]) if type(
                        value) in (list, tuple) else value
        case dict():
            for key in [*value][:6]:
                yield {name: item for name, item in value.items() if name != key}
                for other in variations(value[key], none):
                    yield value | {key: other}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for each in dataclasses.fields(value):
                for other in variations(getattr(value, each.name), "None" in str(each.type)):
                    try:
                        yield dataclasses.replace(value, **{each.name: other})
                    except Exception:                        # it refuses such a value
                        continue


def _arrays(value: np.ndarray) -> Iterator[np.ndarray]:
    if value.dtype.kind == "b":
        yield from (~value, np.zeros_like(value), np.ones_like(value))
    elif value.dtype.kind in "iu":
        yield from (value + 1, value[::-1], 11 * value, np.zeros_like(value))
    elif value.dtype.kind == "f":
        yield from (value * 200, value / 1000, -value, np.zeros_like(value), np.round(value))
        for special in (-np.inf, np.nan):
            if value.size:
                other = value.copy()
                other.flat[value.size // 2] = special
                yield other
    if value.ndim:
        yield from (value[:1], value[:0], np.repeat(value, 2, axis=0)[::2],
                    np.asfortranarray(value))
    locked = value.copy()
    locked.flags.writeable = False
    yield locked
