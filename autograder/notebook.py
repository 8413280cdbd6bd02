"""What the cells of a notebook call: `check`, under every exercise, and `progress`, once."""

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autograder.board import DISPLAY_ID, Board, notebook_path, saved_points
from autograder.chapters.outline import outline
from autograder.checking import checks_of, exercises, methods_of_others
from autograder.checking.levels import why_not_here
from autograder.checking.report import Display
from autograder.checking.running import Report, collected_remarks, run_exercise
from autograder.judge.attempt import load
from autograder.judge.diagnosis import with_diagnosis
from autograder.judge.judging import not_attempted
from autograder.reference.names import methods_of, names_of
from autograder.submissions.answers import Answer, answer_to
from autograder.submissions.attempts import State, chapter_of, find_components
from autograder.submissions.history import defines, notebook_so_far
from autograder.variants.mutation import reference_subjects

# Set to "reference" where the reference itself is to be checked, as for the book's pages.
SUBJECT = "AUTOGRADER_SUBJECT"

_unsound: set[str] = set()      # names of this kernel that did not pass when last checked
_boards: list[Board] = []       # of this kernel: the one that is shown is the last


def progress(chapter: str) -> None:
    """Show how far a chapter is, such as "04_transformer"; each `check` renews it.

    What an earlier session found comes from the notebook's file. Shows nothing for a chapter
    that is not of this course.
    """
    shell = _shell()
    for each in outline():
        if each.stem == chapter and shell is not None:
            from IPython.display import display
            path = notebook_path(chapter, shell.user_ns)
            _boards.append(Board(each, saved_points(path, each)))
            display(_boards[-1], display_id=DISPLAY_ID)


def check(exercise: str, *subjects: Any, seed: int | None = None) -> float:
    """Check what you wrote: shows what each check found, and is worth the points.

    exercise: its name, such as "tokenizer.train_bpe"; subjects: the functions or classes that
    it names, in that order. seed: makes the checks take the inputs of an earlier run. What is
    checked is your own definition, with the reference for those of other exercises. Where it is
    not written yet, the reference takes its name in the notebook, so that the cells below run.
    Returns the score, between 0 and the exercise's points: a plain float. Never raises because
    of the code that it checks; an interrupt passes.
    """
    report = _report(exercise, subjects, seed)
    _show(report)
    if _boards and _boards[-1].note(report):
        from IPython.display import update_display
        update_display(_boards[-1], display_id=DISPLAY_ID)
    return report.score


def _report(exercise: str, subjects: tuple[Any, ...], seed: int | None) -> Report:
    try:
        checks = checks_of(exercise)
    except LookupError:
        near = difflib.get_close_matches(exercise, exercises(), 1)
        advice = (f"Did you mean {near[0]!r}?" if near
                  else "Restore the check cell from the chapter.")
        return Report(exercise, (), 0.0, problem=f"There is no exercise of this name. {advice}")
    names = names_of(exercise)
    total = float(sum(check.points for check in checks))
    if len(subjects) != len(names) or not all(map(callable, subjects)):
        right = f"check({exercise!r}, {', '.join(names)})"
        return Report(exercise, (), total,
                      problem="This cell needs the definitions themselves, not what they "
                              f"return: {right}.")
    answer = _answer(exercise, subjects)
    if missing := why_not_here(exercise):
        report = Report(exercise, (), total,
                        problem=f"This exercise cannot be checked here: {missing}")
    elif answer is None:                                # no cell's, or the reference's own
        if methods_of(exercise):
            subjects = (_part(exercise, subjects[0]),)
        report = _checked(exercise, subjects, seed)
    else:
        report = _on(answer, seed)
    if answer is not None:
        report = replace(report, notes=(*report.notes, *_stand_in(answer)))
    if report.score < report.total and report.attempted:
        _unsound.update(names)
    else:
        _unsound.difference_update(names)
    return report


def _checked(exercise: str, subjects: Sequence[Any], seed: int | None) -> Report:
    return with_diagnosis(run_exercise(exercise, subjects, seed=seed), subjects)


def _answer(exercise: str, subjects: Sequence[Any]) -> Answer | None:
    """What this notebook's cells hold of the exercise; None if the subjects are not theirs."""
    shell = _shell()
    theirs = None if shell is None else [shell.user_ns.get(name) for name in names_of(exercise)]
    if (theirs is None or os.environ.get(SUBJECT) == "reference"
        or any(own is not subject for own, subject in zip(theirs, subjects))):
        return None
    chapters = [chapter for chapter in outline()
                if any(each.name == exercise for each in chapter.exercises)]
    for chapter in chapters:
        notebook = notebook_so_far(shell.history_manager.input_hist_raw, chapter)
        if chapter_of(notebook, chapters) is chapter and defines(notebook, names_of(exercise)):
            [asked] = [each for each in chapter.exercises if each.name == exercise]
            return answer_to(asked, find_components([chapter], [notebook]))
    return None


def _on(answer: Answer, seed: int | None) -> Report:
    """The report on an answer, which is loaded and checked here, in the learner's kernel."""
    exercise = answer.exercise.name
    untouched = not_attempted(exercise, public=True)
    if not answer.is_started:
        return untouched
    if answer.attempt is None:
        return Report(exercise, (), untouched.total, problem=answer.problem)
    try:
        with collected_remarks() as remarks:
            subjects = load(answer.attempt)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Report(exercise, (), untouched.total, notes=answer.notes,
                      problem=f"Its cell does not run: {type(error).__name__}: {error}.")
    report = _checked(exercise, subjects, seed)
    spoilt = [name for name in answer.lent if name in _unsound]
    notes = [f"This was checked with the reference's {name}. The cells below use yours, which "
             "has not passed its own checks." for name in spoilt]
    return replace(report, notes=(*answer.notes, *notes),
                   remarks=tuple(dict.fromkeys([*remarks, *report.remarks])))


def _stand_in(answer: Answer) -> list[str]:
    """Let the reference take the place of what is not written. Returns what is to be said.

    An exhibit stays as it was found: it is there to be looked at.
    """
    if answer.exercise.exhibit:
        return []
    namespace = _shell().user_ns
    taken = []
    references = dict(zip(answer.exercise.names, reference_subjects(answer.exercise.name)))
    for component in answer.components:
        if component.state is State.FINISHED:
            continue
        reference, own = references[component.name], namespace[component.name]
        open_methods = component.open_methods or answer.exercise.methods
        goes_on = answer.exercise.is_part or component.fits_the_engine
        if goes_on and isinstance(own, type) and own is not reference:
            for method in open_methods:
                setattr(own, method, vars(reference)[method])
            taken += [f"{component.name}.{method}" for method in open_methods]
        else:
            namespace[component.name] = reference
            taken.append(component.name)
    if not taken:
        return []
    return [f"Not written yet: {', '.join(taken)}. The reference stands in for it below, so "
            "that you can go on; it earns nothing."]


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


def _shell() -> Any:
    """The IPython that runs this; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _show(report: Report) -> None:
    """Display the report in a notebook; print it elsewhere.

    It comes before the score, or nbgrader reads the wrong output.
    """
    if _shell() is not None:
        from IPython.display import display
        display(Display(report))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(str(Display(report)).encode(encoding, "replace").decode(encoding))
