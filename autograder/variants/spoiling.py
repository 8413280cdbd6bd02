"""Right code that spoils what it was given: each argument of every call, in each way there is.

A spoiler is the reference, which after its work changes one argument in place: it empties a
list, adds to it, turns it round, or does so to what lies in it. Its results are right; whoever
looks at the argument afterwards finds it out. What the reference writes to, such as the memory
of a cache, is an output, and not tried.

Checks and the reference tell which arguments there are: they run once, and every call is
watched. Spoilers run in copies of that process, since they may spoil what checks keep.
"""

import copy
import dataclasses
import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from autograder.checking import checks_of
from autograder.checking.differential import first_difference_only
from autograder.checking.running import CHECK_SECONDS, Status, collected_remarks, run_check
from autograder.processes.child import Child, pipes
from autograder.processes.fork import end_after, in_a_copy
from autograder.reference.names import names_of
from autograder.variants.mutation import reference_subjects

WAYS = ("emptied", "grown", "turned", "inside")
SEED = 1
SECONDS = 60                # of processor time for all checks of one spoiler
SILENCE_SECONDS = 600       # by the wall clock, and only where nothing else ends it

# What is done when a call has ended, made of its arguments by name when it begins.
Watch = Callable[[str, dict[str, Any]], Callable[[], None]]


@dataclass(frozen=True, order=True)
class Spoiler:
    """Which argument is spoilt, in which way, in calls of a function or of `Class.method`."""

    function: str
    argument: str
    way: str

    def __str__(self) -> str:
        return f"{self.function}: {self.argument} {self.way}"


@dataclass(frozen=True)
class Found:
    """What became of an exercise's spoilers. caught: the check that did it; "" if none."""

    caught: dict[Spoiler, str]

    @property
    def survivors(self) -> list[Spoiler]:
        return [spoiler for spoiler, check in self.caught.items() if not check]


class Worker:
    """A process for trials: started for the first, and again after something ended it."""

    def __init__(self) -> None:
        self._child = Child("autograder.variants.spoiling", threads=1)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *details: object) -> None:
        self._child.end()

    def examine(self, exercise: str, methods: Sequence[str] = ()) -> Found:
        """Try all spoilers of an exercise. methods: of its class, that learners write.

        Raises RuntimeError when the reference itself fails where it is watched.
        """
        caught: dict[Spoiler, str] = {}
        check = ""
        self._child.tell({"exercise": exercise, "methods": [*methods]})
        while (news := self._child.hear(SILENCE_SECONDS)) is not None and "done" not in news:
            if "error" in news:
                raise RuntimeError(f"{exercise}: {news['error']}")
            check = news.get("check", check)
            if "spoiler" in news:
                caught[Spoiler(**news["spoiler"])] = check if news["caught"] else ""
        if news is None:
            raise RuntimeError(f"{exercise}: the process for its trials has ended")
        return Found(caught)


def spoilers_of(exercise: str, methods: Sequence[str] = ()) -> list[Spoiler]:
    """All spoilers of an exercise, from what its checks give to the reference.

    Raises RuntimeError when the reference fails where it is watched.
    """
    found: set[Spoiler] = set()
    outputs: set[tuple[str, str]] = set()

    def watch(function: str, given: dict[str, Any]) -> Callable[[], None]:
        kept = {name: _kept(value) for name, value in given.items()}

        def end() -> None:
            for name, value in given.items():
                if not _is_same(value, kept[name]):
                    if sum(value is other for other in given.values()) == 1:
                        outputs.add((function, name))
                    continue
                found.update(Spoiler(function, name, way) for way in WAYS
                             if change_of(value, way) is not None)
        return end

    failed = _first_failure(exercise, watched(exercise, methods, watch))
    if failed:
        raise RuntimeError(f"the reference, watched, fails {failed}")
    return sorted(each for each in found if (each.function, each.argument) not in outputs)


def spoilt(exercise: str, methods: Sequence[str], spoiler: Spoiler) -> list[Any]:
    """The reference's subjects, of which one spoils an argument."""
    def watch(function: str, given: dict[str, Any]) -> Callable[[], None]:
        if function != spoiler.function or spoiler.argument not in given:
            return lambda: None
        value = given[spoiler.argument]
        kept = _kept(value)

        def end() -> None:
            change = change_of(value, spoiler.way) if _is_same(value, kept) else None
            if change is not None:
                change()
        return end
    return watched(exercise, methods, watch)


def watched(exercise: str, methods: Sequence[str], watch: Watch) -> list[Any]:
    """The reference's subjects, of which every call is watched."""
    subjects = []
    for name, subject in zip(names_of(exercise), reference_subjects(exercise)):
        if isinstance(subject, type):
            own = {method: _watched_function(function, f"{name}.{method}", watch)
                   for method, function in vars(subject).items()
                   if inspect.isfunction(function) and (not methods or method in methods)}
            subjects.append(type(name, (subject,), own | {"__module__": subject.__module__}))
        else:
            subjects.append(_WatchedCall(subject, name, watch))
    return subjects


class _WatchedCall:
    """A function whose calls are watched; all else of it is its own."""

    def __init__(self, function: Callable, name: str, watch: Watch):
        self._function = function
        self._called = _watched_function(function, name, watch)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _watched_function(function: Callable, name: str, watch: Watch) -> Callable:
    plain = getattr(function, "py_func", function)                      # if Numba compiles it
    signature = inspect.signature(plain, follow_wrapped=False)

    def begun(args: tuple, kwargs: dict) -> Callable[[], None]:
        try:
            return watch(name, _by_name(signature.bind(*args, **kwargs)))
        except TypeError:                               # which the call will raise, too
            return lambda: None

    def streamed(end: Callable[[], None], stream: Iterator) -> Iterator:
        result = yield from stream
        end()
        return result

    @functools.wraps(plain)
    def called(*args: Any, **kwargs: Any) -> Any:
        end = begun(args, kwargs)
        result = function(*args, **kwargs)
        if inspect.isgenerator(result):
            return streamed(end, result)
        end()
        return result
    return called


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a call, those that a signature takes together one by one.

    Of arguments without a name it has the arrays: they go through to a kernel, and what else
    stands there is for whoever launches it.
    """
    given: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        match bound.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                given |= {f"{name}[{at}]": item for at, item in enumerate(value)
                          if isinstance(_as_array(item), np.ndarray)}
            case inspect.Parameter.VAR_KEYWORD:
                given |= value
            case _:
                given[name] = value
    return given


def change_of(value: Any, way: str) -> Callable[[], Any] | None:
    """What changes a value in this way; None where nothing can, or it would stay the same."""
    value = _as_array(value)
    if way == "inside":
        inner = (value.values() if isinstance(value, dict)
                 else value if isinstance(value, (list, tuple, deque))
                 else [each for each in vars(value).values() if isinstance(each, np.ndarray)]
                 if dataclasses.is_dataclass(value) and hasattr(value, "__dict__") else ())
        return next(filter(None, (change_of(item, each) for item in inner
                                  for each in ("grown", "inside"))), None)
    if isinstance(value, np.ndarray) and value.size and value.flags.writeable:
        if way == "emptied" and value.any():
            return partial(value.fill, 0)
        if way == "grown" and value.dtype.kind in "fiub":
            last = tuple(length - 1 for length in value.shape)
            other = not value[last] if value.dtype.kind == "b" else (
                value[last] + 1 if np.isfinite(value[last]) and value[last] < 100 else 7)
            return partial(value.__setitem__, last, other)
    elif isinstance(value, (list, deque)):
        if way == "emptied" and value:
            return value.clear
        if way == "grown":
            return partial(value.append, copy.copy(value[-1]) if value else 0)
        if way == "turned" and repr([*value]) != repr([*value][::-1]):
            return value.reverse
    elif isinstance(value, dict):
        if way == "emptied" and value:
            return value.clear
        if way == "grown":
            return partial(value.__setitem__, "spoilt", 0)
    elif isinstance(value, (set, bytearray)):
        if way == "emptied" and value:
            return value.clear
    return None


def _as_array(value: Any) -> Any:
    """The memory of a tensor as NumPy sees it; all else is itself."""
    torch = sys.modules.get("torch")
    return value.numpy() if torch and isinstance(value, torch.Tensor) else value


def _kept(value: Any) -> Any:
    """A copy of arrays and containers; all else is itself."""
    value = _as_array(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple, deque, set, bytearray):
        return type(value)(map(_kept, value))
    if type(value) is dict:
        return {key: _kept(item) for key, item in value.items()}
    return value


def _is_same(value: Any, kept: Any) -> bool:
    value = _as_array(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() == kept.tobytes()
    if type(value) in (list, tuple, deque):
        return len(value) == len(kept) and all(map(_is_same, value, kept))
    if type(value) is dict:
        return [*value] == [*kept] and all(_is_same(value[key], kept[key]) for key in value)
    return value is kept or value == kept


def _first_failure(exercise: str, subjects: Sequence[Any],
                   say: Callable[[str], None] = lambda check: None) -> str:
    """The name of the first check that fails; "" where none does."""
    for check in sorted(checks_of(exercise), key=lambda check: not check.public):
        say(check.name)
        with collected_remarks(), first_difference_only():
            outcome = run_check(check, subjects, SEED, seconds=CHECK_SECONDS)
        if outcome.status is not Status.PASSED:
            return check.name
    return ""


def _try(exercise: str, methods: Sequence[str], spoilers: list[Spoiler],
         say: Callable[[dict], None]) -> None:
    """Try spoilers one by one, each in a copy of this process."""
    for spoiler in spoilers:
        def work() -> None:
            end_after(SECONDS, 10 * SECONDS)
            if _first_failure(exercise, spoilt(exercise, methods, spoiler),
                              lambda check: say({"check": check})):
                raise SystemExit
        caught = not in_a_copy(work)
        say({"spoiler": asdict(spoiler), "caught": caught})


def main() -> None:
    """Examine the exercises that come in, one after the other."""
    told, say = pipes()
    for news in told:
        exercise, methods = news["exercise"], news["methods"]
        try:
            spoilers = spoilers_of(exercise, methods)
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            continue
        _try(exercise, methods, spoilers, say)
        say({"done": True})


if __name__ == "__main__":
    main()
