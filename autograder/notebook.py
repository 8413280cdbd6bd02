"""What the cells of a notebook call: `check`, under every exercise, and `optional`."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from autograder import judge
from autograder.checking import checks_of, exercises, methods_of_others
from autograder.checking.levels import why_not_here
from autograder.checking.report import Display
from autograder.checking.running import Report, collected_remarks, run_exercise
from autograder.judge.diagnosis import with_diagnosis
from autograder.reference.names import methods_of, names_of
from autograder.variants.mutation import reference_subjects


def check(exercise: str, *subjects: Any, seed: int | None = None) -> float:
    """Check what you wrote: shows what each check found, and is worth the points.

    exercise: its name, such as "tokenizer.train_bpe"; subjects: the functions or classes that
    it names, in that order. seed: makes the checks take the inputs of an earlier run. Returns
    the score, between 0 and the exercise's points: a plain float, which nbgrader takes as
    partial credit when it is the value of a cell. Never raises because of the code that it
    checks; an interrupt passes.
    """
    report = _report(exercise, subjects, seed)
    _show(report)
    return report.score


@contextmanager
def optional() -> Iterator[None]:
    """Around a demonstration of an exercise that may be left out, lets the notebook go on.

    >>> with optional():
    ...     raise NotImplementedError("moe.route: write this function")
    moe.route: write this function, or go on: it is optional
    """
    try:
        yield
    except NotImplementedError as unwritten:
        print(f"{unwritten}, or go on: it is optional")


def _report(exercise: str, subjects: tuple[Any, ...], seed: int | None) -> Report:
    is_graded = judge.disarm(exercise)
    try:
        checks = checks_of(exercise)
    except LookupError:
        near = difflib.get_close_matches(exercise, exercises(), 1)
        advice = (f"Did you mean {near[0]!r}?" if near
                  else "Restore the check cell from the chapter.")
        return Report(exercise, (), 0.0, problem=f"There is no exercise of this name. {advice}")
    names = names_of(exercise)
    if len(subjects) != len(names) or not all(map(callable, subjects)):
        right = f"check({exercise!r}, {', '.join(names)})"
        return Report(exercise, (), sum(check.points for check in checks),
                      problem="This cell needs the definitions themselves, not what they "
                              f"return: {right}.")
    if missing := why_not_here(exercise):
        return Report(exercise, (), sum(check.points for check in checks),
                      problem=f"This exercise cannot be checked here: {missing}")
    if methods_of(exercise):
        subjects = (_part(exercise, subjects[0]),)
    report = with_diagnosis(run_exercise(exercise, subjects, seed=seed), subjects)
    if not is_graded:
        return report
    try:
        with collected_remarks() as remarks:
            hidden = judge.judge(exercise, subjects)
    except judge.JudgeError:
        _show(report)                            # what is known, before the error ends the cell
        raise
    return replace(report, outcomes=(*report.outcomes, *hidden),
                   remarks=tuple(dict.fromkeys([*report.remarks, *remarks])))


def _part(exercise: str, subject: Any) -> Any:
    """A class with the exercise's methods as they are, and the reference's for all others'.

    So a method that is open, or wrong, costs points where it is exercised, and nowhere else.
    """
    [reference] = reference_subjects(exercise)
    theirs = {name: vars(reference)[name] for name in sorted(methods_of_others(exercise))}
    try:
        bases = (subject,) if issubclass(subject, reference) else (subject, reference)
        return type(reference.__name__, bases, theirs)
    except TypeError:                                       # no class, or one of a strange kind
        return subject


def _show(report: Report) -> None:
    """Display the report in a notebook; print it elsewhere.

    It comes before the score, or nbgrader reads the wrong output.
    """
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display
        display(Display(report))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(str(Display(report)).encode(encoding, "replace").decode(encoding))
