"""The example in a docstring as a check: what the reference promises there, the subject gives.

The lines are those of the reference's docstring. They run once with the reference and once
with the subject in its place, and what each line shows is compared as a check compares: a list
may be a tuple, and numbers have a tolerance.
"""

import doctest
import importlib
import inspect
import io
import tokenize
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograder.checking.check import Check
from autograder.checking.differential import Raised, compare
from autograder.checking.expectations import expect_returned
from autograder.checking.learner_code import is_not_attempted
from autograder.checking.running import cut
from autograder.processes.limits import TimeLimit
from autograder.reference.names import home_of, methods_of, module_of, names_of

NAME = "docstring_example"
LONGEST = 40                # words of a line that is shown
HINT = "run the line in a cell of its own; what it should give stands below it in the docstring"


def docstring_example(exercise: str, *, points: float) -> Check:
    """The first check of an exercise: the examples in the docstrings that it shows."""
    names = names_of(exercise)
    theirs = "example in the docstring" if len(names) == 1 else "examples in the docstrings"

    def run(*subjects: Any) -> None:
        *subjects, _ = subjects                                       # and no random numbers
        module = importlib.import_module(home_of(module_of(exercise)))
        known = {"np": np, **vars(module)}
        for lines in examples_of(exercise).values():
            _run(lines, dict(known), {**known, **dict(zip(names, subjects))})
    return Check(exercise, NAME, f"The {theirs}.", points, True, run)


def examples_of(exercise: str) -> dict[str, list[doctest.Example]]:
    """The lines of the examples in the docstrings of an exercise, by what they document.

    That is each function or class that it names, or each method; and the class, where no method
    has an example.
    """
    module = importlib.import_module(home_of(module_of(exercise)))
    documented = {name: getattr(module, name) for name in names_of(exercise)}
    if methods := methods_of(exercise):
        [(name, owner)] = documented.items()
        documented = {f"{name}.{method}": getattr(owner, method) for method in methods}
    parser = doctest.DocTestParser()
    found = {name: parser.get_examples(inspect.getdoc(each) or "")
             for name, each in documented.items()}
    if methods and not any(found.values()):
        found = {name: parser.get_examples(inspect.getdoc(owner) or "")}
    return found


def _run(lines: Sequence[doctest.Example], reference: dict, subject: dict) -> None:
    """Run the lines on both sides, and fail at the first that does not give the same."""
    for line in lines:
        source, before = line.source.strip(), dict(reference)
        right, mine = _given(source, reference), _given(source, subject)
        shown = f"`{_shown(source)}`"
        compare([("", mine)], [("", right)], shown, HINT)
        for name, value in reference.items():
            if value is not None and before.get(name) is not value:
                expect_returned(subject.get(name), f"{shown} to give {name} a value")


def _shown(source: str) -> str:
    """A line as a message shows it: without remarks and line breaks, and not all of a long one.

    >>> _shown("f([1,\\n   2])   # two")
    'f([1, 2])'
    """
    ends = [0, *(end + 1 for end, sign in enumerate(source) if sign == "\n")]
    text = source
    for token in reversed([*tokenize.generate_tokens(io.StringIO(source).readline)]):
        if token.type == tokenize.COMMENT:
            line = ends[token.start[0] - 1]
            text = text[:line + token.start[1]] + text[line + token.end[1]:]
    return cut(" ".join(line.strip() for line in text.splitlines() if line.strip()), LONGEST)


def _given(source: str, names: dict) -> Any:
    """What a line gives, if it is an expression; what it defines is defined in `names`."""
    try:
        code = compile(source, "<docstring>", "eval")
    except SyntaxError:                                                      # a statement
        code = compile(source, "<docstring>", "exec")
    try:
        return eval(code, names)
    except (KeyboardInterrupt, TimeLimit):
        raise
    except BaseException as error:                  # pytest's own failures are no `Exception`
        if is_not_attempted(error):
            raise
        return Raised(error)
