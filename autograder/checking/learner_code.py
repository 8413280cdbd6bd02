"""Which code is the learner's, and where in it an error happened."""

import linecache
import re
import sysconfig
import traceback
from functools import cache
from pathlib import Path

import gearworks

COMPILING = ("compiled code has plain loops, numbers and arrays. Behind a decorator, "
             "`.py_func` is the function in Python, easier to try")

_OURS = Path(__file__).parents[1]
_NOT_OURS = [_OURS / "accept", _OURS / "tests"]             # which stand for learners
_GIVEN_TREES = [Path(gearworks.__file__).parent,
                *{Path(sysconfig.get_path(name))
                  for name in ("stdlib", "platstdlib", "purelib", "platlib")}]


@cache
def is_learners(filename: str) -> bool:
    """Whether code of this file name is the learner's, and not the course's or a library's."""
    if filename.startswith("<"):
        return filename.startswith(("<ipython", "<cell"))
    path = Path(filename)
    if path.suffix != ".py":              # compiled code of a library, which names no real path
        return False
    if path.is_relative_to(_OURS):
        return any(path.is_relative_to(folder) for folder in _NOT_OURS)
    return not any(path.is_relative_to(tree) for tree in _GIVEN_TREES)


def own_line(error: BaseException, checks: str = "") -> str:
    """The learner's line in which an error arose, as `line 3: return x / total`; "" if none.

    Code that was taken out of its cell has no number, which would be another one there. checks:
    the file of the check that met the error. Wherever it lies, it is no learner's.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename != checks and is_learners(frame.filename):
            source = linecache.getline(frame.filename, frame.lineno or 0).strip()
            if frame.filename.startswith("<cell") and source:
                return f"the line `{source}`"
            return f"line {frame.lineno}: {source}" if source else f"line {frame.lineno}"
    return ""


def line_of(error: BaseException, checks: str = "") -> str:
    """The learner's line in which an error arose, here or in another process; "" if none."""
    return getattr(error, "line", None) or own_line(error, checks)


def begins_with(word: str, line: str) -> bool:
    """Whether a line, as `own_line` gives it, begins with this word.

    >>> begins_with("raise", "line 3: raise ValueError"), begins_with("raise", "line 4: raised")
    (True, False)
    """
    return re.match(rf"(line \d+: |the line `){word}\b", line) is not None


def next_step(error: BaseException, line: str) -> str:
    """What to look at next when a line of the learner's raised an error.

    That is "" for one that the learner raises: the line does what it should, and the way to it
    is what is wrong.
    """
    if isinstance(error, UnboundLocalError):
        return "which way leads to this line and gives the name no value?"
    if isinstance(error, NameError):
        return "is the name spelled as where it was defined?"
    if begins_with("raise", line):
        return ""
    if isinstance(error, AssertionError) and begins_with("assert", line):
        return ("is what this line asserts right? If it is, look at how its values came about; "
                "print them before it")
    return "run that line alone, with the values it had" if line else ""


def not_compiled(error: BaseException) -> tuple[str, str]:
    """What Numba could not compile, in its first words, and the line as `own_line` gives it;
    empty for any other error."""
    if not type(error).__module__.startswith("numba."):
        return "", ""
    # what follows are all the versions of an operator that it has tried
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))             # of colours, if it has any
    said = re.split(r'\n\s*(?:There are \d|File "|During:)', plain)[0].split("\n")
    words = " ".join(line.strip() for line in said
                     if line.strip() and not line.startswith("Failed in "))
    place = getattr(error, "loc", None)
    if place is None:
        return words, ""
    source = linecache.getline(place.filename, place.line).strip()
    return words, f"line {place.line}: {source}".removesuffix(": ")


def cannot_compile(said: str, line: str) -> str:
    """What was found of code that Numba could not compile, from what `not_compiled` gives."""
    return f"that Numba cannot compile {line or 'it'}. It says: {said}"


def is_not_attempted(error: BaseException) -> bool:
    """Whether an unwritten exercise is behind an error, however often libraries wrapped it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, NotImplementedError):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False
