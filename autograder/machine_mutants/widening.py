"""Inputs that are wider than those that checks draw: each argument of a real call, varied.

What a docstring leaves undefined is among them. So where the reference raises anything but an
error of its own, a call says nothing; and where it gives a result, somebody has to judge
whether that is promised. What is the same for all of them, is the same.
"""

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checking import Check
from autograder.checking.running import collected_remarks, run_check
from autograder.processes.limits import TimeLimit, time_limit
from gearworks.errors import GearworksError

MOST = 400                  # calls that are kept
REAL = 60                   # and real ones that they are made of
SECONDS = 0.3               # of processor time that the reference may take for one
LARGEST = 20_000            # bytes of an argument that is varied


@dataclass(frozen=True)
class WideCall:
    """A call of one of an exercise's functions: which, and with what."""

    subject: int
    args: tuple
    kwargs: dict

    def result(self, subjects: Sequence[Callable]) -> tuple[str, Any, tuple, dict]:
        """How the call ends, with what, and what became of the arguments."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        with np.errstate(all="ignore"), collected_remarks():
            try:
                value = subjects[self.subject](*args, **kwargs)
                value = list(value) if isinstance(value, Iterator) else value
                return "gives", value, args, kwargs
            except GearworksError as error:
                return "refuses", type(error).__name__, args, kwargs
            except Exception as error:
                return "raises", type(error).__name__, args, kwargs


def wide_calls(checks: Sequence[Check], subjects: Sequence[Any], seed: int) -> list[WideCall]:
    """Calls like those that the checks make, of each of which one argument is another one.

    None where the exercise is a class. The reference gives a result, or refuses, in all of
    them, and soon.
    """
    if any(isinstance(subject, type) for subject in subjects):
        return []
    real = _real_calls(checks, subjects, seed)
    rng = random.Random(seed)
    found: list[WideCall] = []
    varied = [call for each in rng.sample(real, min(len(real), REAL)) for call in _varied(each)]
    rng.shuffle(varied)
    for call in varied:
        try:
            with time_limit(SECONDS):
                ending = call.result(subjects)[0]
        except (TimeLimit, Exception):         # such as an argument that cannot be copied
            continue
        if ending != "raises":
            found.append(call)
        if len(found) == MOST:
            break
    return found


def _real_calls(checks: Sequence[Check], subjects: Sequence[Callable],
                seed: int) -> list[WideCall]:
    calls: list[WideCall] = []

    def spy(index: int) -> Callable:
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                calls.append(WideCall(index, *copy.deepcopy((args, kwargs))))
            except Exception:
                pass
            return subjects[index](*args, **kwargs)
        return called

    for check in checks:
        with collected_remarks():
            run_check(check, [spy(index) for index in range(len(subjects))], seed, seconds=20)
    return calls


def _varied(call: WideCall) -> Iterator[WideCall]:
    for at, value in enumerate(call.args):
        for other in variations(value):
            yield dataclasses.replace(call, args=(*call.args[:at], other, *call.args[at + 1:]))
    for name, value in call.kwargs.items():
        for other in variations(value):
            yield dataclasses.replace(call, kwargs=call.kwargs | {name: other})


def variations(value: Any) -> Iterator[Any]:
    """Values of the same kind that are easily forgotten.

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
            yield from (value + 1, value - 1, 0, 11 * value, 50_000, None)
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
                for other in variations(value[at]):
                    yield type(value)([*value[:at], other, *value[at + 1:]]) if type(
                        value) in (list, tuple) else value
        case dict():
            for key in [*value][:6]:
                yield {name: item for name, item in value.items() if name != key}
                for other in variations(value[key]):
                    yield value | {key: other}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for each in dataclasses.fields(value):
                for other in variations(getattr(value, each.name)):
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
