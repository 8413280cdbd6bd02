"""The subject and the reference on many drawn inputs, and the smallest that tells them apart.

Most of the inputs are the same in every run: a wrong version that they find out earns the same
points in every course. The others come from the check's generator, so that nobody can know them
all. hypothesis draws and shrinks. It keeps nothing on disk, prints nothing, and leaves Python's
and NumPy's own generators as they were.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis.errors import Flaky, NoSuchExample
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from autograder.checking.check import CheckFailure
from autograder.checking.draws import kept_cases
from autograder.checking.expectations import error_text, expect_same, short
from autograder.checking.learner_code import (COMPILING, cannot_compile, is_not_attempted,
                                              line_of, next_step, not_compiled)
from autograder.generators.calls import Call, Script, typed

EXAMPLES = 60               # inputs that are drawn
ALWAYS = 2 / 3              # of them are the same in every run, and come first
SHRINK_CALLS = 500          # inputs that may be tried to find a smaller one
SHRINK_SECONDS = 1.5        # of processor time for them, as a backstop
LONGEST = 600               # characters of an input that is worth printing


@dataclass(frozen=True)
class Raised:
    """What is seen of a call that raised an error."""

    error: BaseException

    def told(self) -> str:
        """The error in words, and where in the learner's code it arose."""
        said, line = not_compiled(self.error)
        if said:
            return cannot_compile(said, line)
        text = f"{type(self.error).__name__}: {error_text(self.error)}".removesuffix(": ")
        line = line_of(self.error)
        return f"{text}, raised at {line}" if line else text

    def failure(self, expected: str, hint: str) -> CheckFailure:
        """The failure of a check that expected something else. hint: unless the error has its
        own."""
        step = (COMPILING if not_compiled(self.error)[0]
                else next_step(self.error, line_of(self.error)))
        return CheckFailure(expected, self.told(), step or hint)


# What is seen, in its order: what it is in words, such as "the text of", "" for the result
# itself; and the value.
Seen = list[tuple[str, Any]]


def called(subject: Any, case: Call | Script) -> Seen:
    """What can be seen of a call: its result, and its arguments afterwards;
    of a script, the result of each step."""
    if isinstance(case, Script):
        args, kwargs = case.call.made()
        target = subject(*args, **kwargs)
        return [(f"step {number}, `{typed(call, name)}`, of",
                 attempted(getattr(target, name), call))
                for number, (name, call) in enumerate(case.steps, start=1)]
    args, kwargs = case.made()
    result = attempted(subject, args=args, kwargs=kwargs)
    names = [*(f"argument {number}" for number in range(1, len(args) + 1)), *kwargs]
    return [("", result), *((f"{name}, after the call, of", argument)
                            for name, argument in zip(names, [*args, *kwargs.values()]))]


def attempted(function: Callable, call: Call | None = None, *, args: list | tuple = (),
              kwargs: dict | None = None) -> Any:
    """What a call gives, or `Raised`. Values that may change later are copied."""
    if call is not None:
        args, kwargs = call.made()
    try:
        result = function(*args, **kwargs or {})
        if isinstance(result, Iterator):
            return list(result)
    except CheckFailure:
        raise
    except Exception as error:
        if is_not_attempted(error):
            raise
        return Raised(error)
    return (copy.deepcopy(result) if isinstance(result, (list, tuple, dict, set, np.ndarray))
            else result)


def expect_agreement(subject: Any, reference: Any, cases: SearchStrategy,
                     rng: np.random.Generator, *, name: str = "",
                     run: Callable[[Any, Any], Seen] = called, examples: int = EXAMPLES,
                     hint: str | Mapping[str, str] = "",
                     atol: float | Callable[[Any], float] | None = None,
                     rtol: float = 1e-5, always: int = 0) -> None:
    """Fail if the subject differs from the reference on a drawn input; tells a small one.

    cases: a strategy of `Call`, of `Script`, or of what `run` understands. run: lets a subject
    do what a case says, and gives all that can be seen of it. name: of the subject, as a
    learner types it. hint: what to look at next; or several, each by the words that begin what
    is seen. atol, rtol: as for `expect_same`; atol may depend on the case. always: as for
    `expect_on_all`. Errors must be of the reference's kind.
    """
    name = name or reference.__name__

    def demand(case: Any) -> None:
        got, right = _seen(run, subject, case), _seen(run, reference, case)
        near = atol(case) if callable(atol) else atol
        try:
            compare(got, right, "it", hint, near, rtol)
        except CheckFailure:                          # the case is written out where it matters
            compare(got, right, f"`{_cut(typed(case, name))}`", hint, near, rtol)
    expect_on_all(cases, demand, rng, examples, always)


def expect_on_all(cases: SearchStrategy, demand: Callable[[Any], None],
                  rng: np.random.Generator, examples: int = EXAMPLES, always: int = 0) -> None:
    """Fail as `demand` fails on the smallest case that could be found of those that fail.

    always: the seed of the cases that are the same in every run. Where 0 leaves a known mutant
    to chance, another number does not.
    """
    def difference(case: Any) -> CheckFailure | None:
        try:
            demand(case)
        except CheckFailure as failure:
            return failure
        return None

    familiar, found = round(ALWAYS * examples), None
    for seed, count in ((always, familiar), (int(rng.integers(2**63)), examples - familiar)):
        if found is None or _search.get() is Search.ALL:
            failure = _smallest(cases, difference, seed, count)
            found = found or failure
    if found is not None:
        raise found


def _seen(run: Callable[[Any, Any], Seen], subject: Any, case: Any) -> Seen:
    try:
        return run(subject, case)
    except CheckFailure:
        raise
    except Exception as error:
        if is_not_attempted(error):
            raise
        return [("", Raised(error))]


def compare(got: Seen, wanted: Seen, shown: str, hints: str | Mapping[str, str] = "",
            atol: float | None = None, rtol: float = 1e-5) -> None:
    """Fail at the first thing that is seen of `shown` and is not as it should be."""
    for (_, mine), (part, right) in zip(got, wanted):
        of = f"{part} {shown}" if part else shown
        hint = (hints if isinstance(hints, str) else
                next((each for begin, each in hints.items() if part.startswith(begin)), ""))
        if isinstance(right, Raised):
            kind = type(right.error)
            if kind is AssertionError:           # a test says by any error that it has failed
                kind = BaseException
            if not isinstance(mine, Raised):
                raise CheckFailure(f"{of} to raise {kind.__name__}",
                                   "no error, and " + short(mine), hint)
            if not isinstance(mine.error, kind):
                raise mine.failure(f"{of} to raise {kind.__name__}", hint)
            continue
        if isinstance(mine, Raised):
            raise mine.failure(f"{of} to raise no error" if right is None
                               else f"{of} to give {short(right)}", hint)
        expect_same(mine, right, of=of, hint=hint, atol=atol, rtol=rtol)


def _smallest(cases: SearchStrategy, difference: Callable[[Any], CheckFailure | None],
              seed: int, examples: int) -> CheckFailure | None:
    """The failure on the case that is the shortest to write, of all that were tried."""
    kept = kept_cases((seed, examples), lambda: _drawn(cases, seed, examples))
    if kept is None:
        return _searched(cases, difference, seed, examples)
    failures = filter(None, map(difference, kept))
    first = next(failures, None)
    if first is not None and _search.get() is Search.SMALLEST:
        return _searched(cases, difference, seed, examples) or first
    if _search.get() is Search.ALL:
        list(failures)                      # the subject meets all that was drawn
    return first


def _drawn(cases: SearchStrategy, seed: int, examples: int) -> list[Any]:
    """The cases of a search that finds nothing."""
    drawn: list[Any] = []
    _find(cases, lambda case: drawn.append(case) is not None, seed, examples)
    return drawn


def _searched(cases: SearchStrategy, difference: Callable[[Any], CheckFailure | None],
              seed: int, examples: int) -> CheckFailure | None:
    best: CheckFailure | None = None
    length = tried = 0
    end = 0.0

    def differs(case: Any) -> bool:
        nonlocal best, length, tried, end
        if best is not None and _search.get() is not Search.ALL:
            tried += 1
            if tried > SHRINK_CALLS or time.process_time() > end:
                raise _Enough
        try:
            failure = difference(case)
        except (Exception, SystemExit, GeneratorExit) as error:    # hypothesis would keep them
            raise _Enough from error
        if failure is None:
            return False
        if best is None:
            end = time.process_time() + SHRINK_SECONDS
        if best is None or len(typed(case)) <= length:      # what is tried later is simpler
            best, length = failure, len(typed(case))
        if _search.get() is Search.FIRST:
            raise _Enough
        return _search.get() is Search.SMALLEST

    try:
        _find(cases, differs, seed, examples)
    except _Enough as enough:
        if enough.__cause__ is not None:
            raise enough.__cause__ from None
    return best


def _find(cases: SearchStrategy, condition: Callable[[Any], bool], seed: int,
          examples: int) -> None:
    plan = settings(max_examples=examples, database=None, deadline=None, print_blob=False,
                    verbosity=Verbosity.quiet, phases=[Phase.generate, Phase.shrink],
                    suppress_health_check=list(HealthCheck))
    callbacks = [*gc.callbacks]
    try:
        with _undisturbed():
            find(cases, condition, random=Random(seed), settings=plan)
    except (NoSuchExample, Flaky):
        pass
    finally:
        gc.callbacks[:] = callbacks                 # hypothesis would go on watching the clock


class Search(Enum):
    """What a search does with an input that tells the two apart: it looks for a SMALLEST one;
    it ends with the FIRST, for those who read no message; or it goes on with ALL that it would
    draw, for those who watch what the subject makes of each."""

    SMALLEST, FIRST, ALL = range(3)


_search = ContextVar("what searches do", default=Search.SMALLEST)


@contextmanager
def searches(kind: Search) -> Iterator[None]:
    """Within it, searches are of this kind."""
    token = _search.set(kind)
    try:
        yield
    finally:
        _search.reset(token)


def first_difference_only() -> AbstractContextManager[None]:
    """Within it, searches end with the first input that tells the two apart."""
    return searches(Search.FIRST)


class _Enough(BaseException):
    """Ends a search from within: hypothesis takes no other way out for one."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the constants that hypothesis collects from the source of loaded modules.

    It would read and parse all of the course, write what it found to the working directory,
    and draw other inputs where other modules are loaded.
    """
    known = vars(providers).keys() & {"_get_local_constants", "_local_constants",
                                      "CONSTANTS_CACHE"}
    if len(known) < 3:                         # another version, which may not collect any
        yield
        return
    with (patch.object(providers, "_get_local_constants", type(providers._local_constants)),
          patch.object(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(1024))):
        yield


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
