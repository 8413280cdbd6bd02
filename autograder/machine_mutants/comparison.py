"""Whether a mutant that no check has caught does anything else than the reference.

Checks are run with many seeds, and every word between check and subject is recorded, of the
mutant as of the reference: arguments, results, what became of the arguments, exceptions. A
check that draws its inputs from a generator draws others with every seed.
"""

import itertools
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from autograder.checking import Check
from autograder.checking.running import Status
from autograder.judge.diagnosis import Record, agree, conversation
from autograder.judge.wire import Message, WireError, decode, encode
from autograder.machine_mutants.widening import WideCall, wide_calls

SEEDS = range(2, 42)
SECONDS = 3                 # of processor time that the reference's records of them may take
ROUNDINGS = 20              # of a wide call's numbers, where a mutant rounds otherwise
SHOWN = 160                 # characters of a value
SHORT = 10_000              # elements of an array that may be a list as well
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"[/\\]tmp\w{8}")


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    found: "same", bit for bit; "types", equal values of other types, as a tuple for a list;
    "rounds", equal but for rounding; "wider", it differs on wider inputs alone; "differs", in
    something that the check let pass; "caught", by the check with another seed; "unknown".
    check, seed: where. calls, wide: how many were alike, on inputs as checks draw them and on
    wider ones. shows: the first difference.
    """

    found: str
    check: str = ""
    seed: int = 0
    calls: int = 0
    wide: int = 0
    shows: str = ""


@dataclass
class Records:
    """What checks and the reference say to each other, and calls that are wider."""

    checks: Sequence[Check]
    reference: Sequence[Any]
    wide: list[tuple[WideCall, Any]] = field(default_factory=list)
    _found: list[tuple[Check, int, Record]] = field(default_factory=list)
    _seeds: int = 0

    def __len__(self) -> int:
        """How many seeds were recorded; 1 before any."""
        return max(1, self._seeds)

    def __iter__(self):
        return iter(self._found)

    def fill(self) -> None:
        """Record the reference with as many seeds as there is time for, once."""
        if self._seeds:
            return
        start = time.process_time()
        for call in wide_calls(self.checks, self.reference, SEEDS[0]):
            with _same_chance():
                self.wide.append((call, call.result(self.reference)))
        for seed in SEEDS:
            for check in self.checks:
                with _same_chance():
                    record, outcome = conversation(check, self.reference, seed, 60)
                if outcome.status is Status.PASSED:     # through pipes some checks cannot run
                    self._found.append((check, seed, record))
            self._seeds += 1
            if time.process_time() - start > SECONDS:
                break


def compare(records: Records, subjects: Sequence[Any], seconds: Mapping[str, float],
            rounds: bool = False) -> Comparison:
    """Compare subjects with the reference in everything that was recorded.

    seconds: that each check may take, by its name. rounds: whether the subjects compute in
    another precision, and in nothing else: what the reference gives for a wide call whose
    numbers are a rounding away is then no other result.
    """
    worst, calls, wide, shows, where = "same", 0, 0, "", ("", 0)
    for check, seed, theirs in records:
        with _same_chance():
            mine, outcome = conversation(check, subjects, seed, 2 * seconds[check.name])
        if outcome.status is not Status.PASSED:
            return Comparison("caught", check.name, seed, calls, 0, outcome.found[:2 * SHOWN])
        if exactly(mine, theirs):
            calls += len(theirs) // 2
            continue
        at = _first_difference(mine, theirs)
        found = ("types" if exactly(mine, theirs, of_values=True)
                 else "rounds" if agree(mine, theirs) else "differs")
        if found == "differs" or worst == "same" or (worst, found) == ("types", "rounds"):
            worst, shows, where = found, _shown(mine, theirs, at), (check.name, seed)
        if found == "differs":
            return Comparison(worst, *where, calls, 0, shows)
    for call, theirs in records.wide:
        with _same_chance():
            mine = call.result(subjects)
        if _encoded(mine) == _encoded(theirs):
            wide += 1
        elif worst in ("same", "types"):
            if _encoded(mine, of_values=True) == _encoded(theirs, of_values=True):
                worst, shows = "types", shows or _told(call, mine, theirs)
            elif _near(mine, theirs) or rounds and any(
                    _near(mine, other.result(records.reference))
                    for other in call.rounded(ROUNDINGS)):
                worst, shows = "rounds", _told(call, mine, theirs)
            else:
                return Comparison("wider", "", 0, calls, wide, _told(call, mine, theirs))
    return Comparison(worst, *where, calls, wide, shows)


@contextmanager
def _same_chance() -> Iterator[None]:
    """Within it, the names that the system gives and the time are the same in every run."""
    with (patch("os.urandom", Random(0).randbytes),
          patch("random._urandom", Random(0).randbytes),            # of seeds that nobody gave
          patch("time.time", itertools.count(1_700_000_000).__next__)):
        yield


def _message(result: Any) -> Message:
    """How a call ended, as it would travel."""
    blobs: list[bytes] = []
    return Message(encode(result, blobs, lambda value: type(value).__name__), blobs)


def _near(mine: Any, theirs: Any) -> bool:
    return agree([_message(mine)], [_message(theirs)])


def _encoded(result: Any, of_values: bool = False) -> Any:
    return _content(_message(result), of_values)


def _told(call: WideCall, mine: Any, theirs: Any) -> str:
    with np.printoptions(threshold=8, precision=5):
        parts = [f"{call}", f"{mine[:2]}", f"{theirs[:2]}"]
        if _encoded(mine[:2]) == _encoded(theirs[:2]):
            parts[1:] = [f"arguments {mine[2:]}", f"{theirs[2:]}"]
    asked, got, right = (" ".join(part.split())[:SHOWN] for part in parts)
    return f"{asked} -> {got}, not {right}"


def exactly(first: Record, second: Record, of_values: bool = False) -> bool:
    """Whether two records say the same, bit for bit, but for the words of errors.

    of_values: whatever the types of collections and numbers are.
    """
    return len(first) == len(second) and all(
        _content(a, of_values) == _content(b, of_values) for a, b in zip(first, second))


def _first_difference(first: Record, second: Record) -> int:
    return next((at for at, (a, b) in enumerate(zip(first, second))
                 if _content(a) != _content(b)), min(len(first), len(second)))


def _content(message: Message, of_values: bool = False) -> Any:
    return _part(message.data, message.blobs, of_values)


def _part(data: Any, blobs: list[bytes], of_values: bool) -> Any:
    """A part of a message in which only counts what a caller could see."""
    if isinstance(data, (list, tuple)):
        return [_part(item, blobs, of_values) for item in data]
    if isinstance(data, str):
        return ("str", TEMPORARY.sub("", data))
    if isinstance(data, float):
        return "nan" if data != data else (data if of_values else repr(data))
    if not isinstance(data, dict):
        return data if of_values else (type(data).__name__, data)
    if "kinds" in data and "text" in data:                          # an exception
        return data["kinds"]
    if data.get("kind") in ("array", "scalar"):
        array = decode(data, blobs, lambda handle: None)
        if of_values and array.size < SHORT:
            return _part(array.tolist(), blobs, of_values)
        return (array.dtype.str, np.shape(array), np.ascontiguousarray(array).tobytes())
    if "blob" in data:
        return blobs[data["blob"]]
    if data.get("kind") == "dataclass":                             # no two take equally long
        return [data["class"], *(_part(value, blobs, of_values)
                                 for key, value in zip(data["keys"], data["values"])
                                 if not key.endswith("seconds"))]
    if of_values and data.get("kind") in ("tuple", "deque"):
        return _part(data["items"], blobs, of_values)
    if of_values and data.get("kind") == "rows":
        return _part(data["items"], blobs, of_values)
    if data.get("kind") in ("set", "frozenset"):
        return sorted(map(repr, _part(data["items"], blobs, of_values)))
    ignored = {"type", "operations"} if data.get("kind") == "handle" else set()
    return {key: _part(value, blobs, of_values) for key, value in data.items()
            if key not in ignored}


def _shown(mine: Record, theirs: Record, at: int) -> str:
    """The first difference of two records, for somebody who looks for its cause."""
    if at >= min(len(mine), len(theirs)):
        return f"{len(mine)} messages instead of {len(theirs)}"
    asked = _text(theirs[at - 1]) if at else ""
    return f"{asked} -> {_text(mine[at])}, not {_text(theirs[at])}"


def _text(message: Message) -> str:
    data = message.data
    part = next((data[name] for name in ("changed", "arguments", "value", "error")
                 if name in data), data)
    try:
        with np.printoptions(threshold=8, precision=5):
            value = decode(part, message.blobs, lambda handle: handle.get("type", "…"))
            text = f"{data['name']}{value!r}" if data.get("op") == "call" else repr(value)
    except (WireError, TypeError):
        text = str(part)
    return " ".join(text.split())[:SHOWN]
