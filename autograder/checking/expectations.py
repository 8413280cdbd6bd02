"""What a check demands, and what it says else: expected, the first difference, what to try."""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autograder.checking.check import CheckFailure
from autograder.checking.learner_code import line_of, next_step
from autograder.generators.printing import visible
from gearworks.errors import GearworksError

WIDENED = ("A float64 came in on the way and widened what it met. NumPy's numbers are float64, "
           "such as `np.sqrt(2)`, and so are arrays such as `np.zeros(3)`, made without a "
           "`dtype`. Python's own numbers are harmless.")
SHAPES = ("Print the shapes on the way to the result: which line gives this one? The docstring "
          "says which it should be.")
DTYPES = "Look at the dtype of what is returned, and of what it is made of."
KINDS = "Which line makes this value? Print its type there."
NANS = ("Where is the first nan? inf - inf, 0 / 0 and 0 · inf give one; so does memory that "
        "was never written, or that nobody should have read.")
NEARLY = ("Nearly right. Is something rounded on the way, as to float16, or is a small term "
          "missing, as an eps?")
NEAR = 2e-3                 # of a number: a float16 is right to one part in 2,048
NOTHING = "that your function returned nothing; is there a `return`?"
WHOLE = 100                 # characters of a value that is shown as a whole


def expect(condition: Any, expected: str, found: str, hint: str = "") -> None:
    """Fail unless the condition holds. The texts continue "Expected …" and "Found …"."""
    if not condition:
        raise CheckFailure(expected, found, hint)


def expect_returned(got: Any, expected: str) -> None:
    """Fail when a function gave None, as one without `return` does."""
    if got is None:
        raise CheckFailure(expected, NOTHING)


def expect_equal(got: Any, expected: Any, *, of: str = "the result", hint: str = "") -> None:
    """Fail unless two values are equal: numbers, strings, bytes, or collections of them.

    A list and a tuple of equal elements are equal, and so are a NumPy integer and an int. of:
    names the value in words. None, where something else is expected, is taken for what a
    function without `return` gives.
    """
    if expected is not None:
        right = _plain(expected)
        expect_returned(got, f"{of} to be {_kind(right)} such as {short(right)}")
    _expect_equal(got, expected, of, hint)


def _expect_equal(got: Any, expected: Any, of: str, hint: str) -> None:
    got, expected = _plain(got), _plain(expected)
    if got is None and expected is None:
        return
    if got is None or expected is None:
        raise CheckFailure(f"{of} to be {short(expected)}", short(got), hint)
    if type(got) is not type(expected) and not (_is_number(got) and _is_number(expected)):
        raise CheckFailure(f"{of} to be {_kind(expected)} such as {short(expected)}",
                           f"{_kind(got)}: {short(got)}", KINDS)
    if got == expected:
        return
    if isinstance(expected, (list, str, bytes)):
        if max(len(repr(got)), len(repr(expected))) <= WHOLE:
            raise CheckFailure(f"{of} to be {visible(repr(expected))}", visible(repr(got)),
                               hint)
        both = min(len(got), len(expected))
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), both)
        part = {list: "element", str: "character", bytes: "byte"}[type(expected)]
        if at == both:
            parts = f"{len(expected)} {part}{'s' * (len(expected) != 1)}"
            raise CheckFailure(f"{of} to have {parts}: {short(expected, at)}",
                               f"{len(got)}: {short(got, at)}", hint)
        raise CheckFailure(f"{of} to be {short(expected, at)}",
                           f"{part} {at} is the first that differs: got {short(got[at])}, "
                           f"expected {short(expected[at])}, in {short(got, at)}", hint)
    if isinstance(expected, dict):
        for key in expected:
            if key not in got:
                raise CheckFailure(f"{of} to have the key {short(key)}",
                                   f"the keys {short(sorted(map(str, got)))}", hint)
            _expect_equal(got[key], expected[key], f"{of} at {short(key)}", hint)
        stranger = next(key for key in got if key not in expected)
        raise CheckFailure(f"{of} to have {len(expected)} key{'s' * (len(expected) != 1)}",
                           f"{len(got)}, among them {short(stranger)}", hint)
    raise CheckFailure(f"{of} to be {short(expected)}", short(got), hint)


def expect_close(got: Any, expected: Any, *, of: str = "the result", axes: Sequence[str] = (),
                 atol: float = 1e-5, rtol: float = 1e-5, dtype: Any = np.float32,
                 hint: str = "") -> None:
    """Fail unless two arrays agree in shape, dtype and, within a tolerance, every element.

    axes: what each axis counts ("query", "head", …), for the report of the first difference.
    dtype: that the result must have; None accepts any floating dtype. nan equals nan, and
    infinities equal themselves.
    """
    expected = np.asarray(expected)
    expect_returned(got, f"{of} to be a NumPy array of shape {expected.shape}")
    if not isinstance(got, np.ndarray) and not np.isscalar(got):
        raise CheckFailure(f"{of} to be a NumPy array of shape {expected.shape}",
                           f"{_kind(got)}: {short(got)}", hint)
    got = np.asarray(got)
    if got.shape != expected.shape:
        raise CheckFailure(f"{of} to have the shape {expected.shape}", f"the shape {got.shape}",
                           SHAPES)
    if dtype is not None and got.dtype != dtype:
        widened = dtype == np.float32 and got.dtype == np.float64
        raise CheckFailure(f"{of} to be {np.dtype(dtype)}", f"{got.dtype}",
                           WIDENED if widened else DTYPES)
    if got.dtype.kind not in "fiub":
        raise CheckFailure(f"{of} to hold numbers", f"the dtype {got.dtype}", DTYPES)
    with np.errstate(invalid="ignore"):          # some patterns of nan signal
        wrong = ~np.isclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol,
                            atol=atol, equal_nan=True)
    if not wrong.any():
        return
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    names = axes if len(axes) == got.ndim else ["index"] * got.ndim
    place = ", ".join(f"{name} {index}" for name, index in zip(names, first)) or "the value"
    if atol and not atol < rtol * np.abs(expected[first]) / 100:       # which of them decides
        nearly = f"within {atol:g}"
    else:
        nearly = f"to one part in {1 / rtol:,.0f}" if rtol else "exactly"
    raise CheckFailure(f"{of} to agree with the truth {nearly}",
                       f"{int(wrong.sum())} of {got.size} elements differ; first: {place}: got "
                       f"{got[first]:.6g}, expected {expected[first]:.6g}",
                       NANS if np.isnan(got[first]) else f"{NEARLY} {hint}".strip()
                       if 2 * wrong.sum() >= got.size and _is_near(got, expected) else hint)


def _is_near(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether floating-point numbers differ by no more than a float16 is wrong by."""
    if expected.dtype.kind != "f" or not np.isfinite(expected).all():
        return False
    size = np.maximum(np.abs(expected), np.mean(np.abs(expected)))
    return bool(np.all(np.abs(got.astype(np.float64) - expected) <= NEAR * size))


def expect_same(got: Any, expected: Any, *, of: str, hint: str = "",
                atol: float | None = None, rtol: float = 1e-5) -> None:
    """Fail unless two values are the same as far as a learner may choose.

    Floating-point numbers agree within a tolerance, arrays in shape, those of floating-point
    numbers in dtype; a list may be a tuple, an integer NumPy's. Of a dataclass its fields are
    compared. atol: by default `rtol` of the largest number in the array.
    """
    more = {"hint": hint, "atol": atol, "rtol": rtol}
    if isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
        largest = float(np.max(np.abs(expected), where=np.isfinite(expected), initial=0))
        expect_close(got, expected, of=of, hint=hint, dtype=expected.dtype, rtol=rtol,
                     atol=rtol * largest if atol is None else atol)
    elif isinstance(expected, np.ndarray):
        expect_returned(got, f"{of} to be a NumPy array of shape {expected.shape}")
        kinds = {"u": "i"}
        kind = getattr(getattr(got, "dtype", None), "kind", "")
        expect(kinds.get(kind, kind) == kinds.get(expected.dtype.kind, expected.dtype.kind),
               f"{of} to be an array of {expected.dtype}",
               f"{getattr(got, 'dtype', _kind(got))}", DTYPES)
        expect_close(got, expected, of=of, hint=hint, dtype=None, atol=0, rtol=0)
    elif isinstance(expected, (float, np.floating)):
        expect_returned(got, f"{of} to be {expected:.6g}")
        is_number = isinstance(got, (int, float, np.floating, np.integer))
        near = is_number and (math.isclose(got, expected, rel_tol=rtol, abs_tol=atol or 1e-12)
                              or (got != got and expected != expected))
        expect(near, f"{of} to be {expected:.6g}", short(got), hint)
    elif isinstance(expected, (str, bytes)):
        expect_returned(got, f"{of} to be {short(expected)}")
        expect(type(got) is type(expected) and got == expected, f"{of} to be {short(expected)}",
               short(got), hint)
    elif isinstance(expected, (list, tuple)):
        expect_returned(got, f"{of} to be {short(expected)}")
        plain = {int, bool, str, bytes, type(None)}
        if not isinstance(got, (list, tuple)) or {*map(type, expected)} <= plain:
            expect_equal(got, expected, of=of, hint=hint)
            return
        expect(len(got) == len(expected),
               f"{of} to have {len(expected)} element{'s' * (len(expected) != 1)}",
               f"{len(got)}", hint)
        for at, (mine, right) in enumerate(zip(got, expected)):
            expect_same(mine, right, of=f"element {at} of {of}", **more)
    elif isinstance(expected, dict):
        expect_returned(got, f"{of} to be {short(expected)}")
        keys = [*expected]
        expect(isinstance(got, Mapping) and {*got} == {*keys},
               f"{of} to have the keys {short(keys)}",
               short([*got]) if isinstance(got, Mapping) else f"{_kind(got)}: {short(got)}",
               hint)
        for key in keys:
            expect_same(got[key], expected[key], of=f"{short(key)} in {of}", **more)
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        expect_returned(got, f"{of} to be a {type(expected).__name__}")
        for each in dataclasses.fields(expected):
            expect(hasattr(got, each.name),
                   f"{of} to be a {type(expected).__name__} with {each.name}", short(got), hint)
            expect_same(getattr(got, each.name), getattr(expected, each.name),
                        of=f"{each.name} of {of}", **more)
    elif expected is None:
        expect(got is None, f"{of} to be None", short(got), hint)
    else:
        expect_equal(got, expected, of=of, hint=hint)


@contextmanager
def expect_error(*kinds: type[BaseException], when: str, hint: str = ""):
    """Fail unless the block raises one of these. `when` names the situation in words."""
    try:
        yield
    except (NotImplementedError, CheckFailure):      # not written yet; of a check in the block
        raise
    except kinds:
        return
    except Exception as error:
        found = f"{type(error).__name__}: {error_text(error)}".removesuffix(": ")
        line = line_of(error)
        if next_step(error, line):
            found, hint = f"{found}, raised at {line}", next_step(error, line)
        raise CheckFailure(f"{_names(kinds)} when {when}", found, hint) from error
    raise CheckFailure(f"{_names(kinds)} when {when}", "no error at all", hint)


def error_text(error: BaseException) -> str:
    """What an exception says, in one line. Of the engine's, what and why: what to try is meant
    for others than who writes the engine.

    >>> error_text(ValueError("no such file\\n  or folder"))
    'no such file; or folder'
    """
    try:
        text = (f"{error.what}: {error.why}" if isinstance(error, GearworksError)
                else str(error))
        text = "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
    except Exception:
        return "an error that cannot be shown"
    return text if len(text) <= 300 else text[:300] + " …"


@contextmanager
def expect_unchanged(*arguments: Any, hint: str = "Work on a copy, or build a new value."):
    """Fail when the block changes one of these arguments in place: arrays, lists, dicts."""
    before = copy.deepcopy(arguments)
    yield
    for position, (argument, kept) in enumerate(zip(arguments, before), start=1):
        if not _is_same(argument, kept):
            place = f"argument {position}" if len(arguments) > 1 else "its argument"
            raise CheckFailure("the function to leave its arguments as they were",
                               f"{place} was changed in place", hint)


def _is_same(value: Any, kept: Any) -> bool:
    if isinstance(value, np.ndarray):
        return (value.dtype == kept.dtype
                and np.array_equal(value, kept, equal_nan=value.dtype.kind == "f"))
    if isinstance(value, (list, tuple)):
        return len(value) == len(kept) and all(map(_is_same, value, kept))
    if isinstance(value, dict):
        return (list(value) == list(kept)
                and all(_is_same(value[key], kept[key]) for key in value))
    return value == kept or value != value


def _plain(value: Any) -> Any:
    """Tuples as lists, NumPy scalars as Python's, arrays of integers as lists."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    return value


def _plain_key(key: Any) -> Any:
    plain = _plain(key)
    return tuple(plain) if isinstance(plain, list) else plain


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _names(kinds: Sequence[type[BaseException]]) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


def short(value: Any, around: int = 0, limit: int = 120) -> str:
    """A value as text that fits a message: of a sequence, a part at the place `around`."""
    if isinstance(value, (list, str, bytes)) and len(value) > 24:
        start = max(0, around - 8)
        text = repr(value[start:start + 24])
        text = f"… {text} …" if start else f"{text} …"
    else:
        try:
            text = repr(value)
        except Exception:
            text = f"<{type(value).__name__}>"
        if isinstance(value, np.ndarray):
            text = " ".join(text.split())                # NumPy breaks lines, and indents them
    text = visible(text)
    return text if len(text) <= limit else text[:limit] + " …"
