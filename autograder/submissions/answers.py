"""What a learner answers to an exercise, and what it is worth.

The one way from a notebook to points: `autograder progress`, nbgrader and the notebook's own
check cells all take it. The subject of an exercise's checks is the learner's definition, with
the reference's for every other one, so that nothing else in the notebook changes its points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autograder.chapters.chapter import Exercise
from autograder.checking.levels import why_not_here
from autograder.checking.running import Report
from autograder.judge.attempt import Attempt
from autograder.judge.judging import judge, not_attempted
from autograder.judge.memory import Memory
from autograder.judge.workers import Workers
from autograder.submissions.attempts import Component, State
from autograder.submissions.grafting import code_of
from gearworks.errors import GearworksError


@dataclass(frozen=True)
class Answer:
    """What was found of an exercise.

    components: of its names. attempt: what can be run of it. problem: why nothing can, though
    something is written. notes: what was strange about it. lent: names of other exercises that
    it uses, which are the reference's while it is checked.
    """

    exercise: Exercise
    components: tuple[Component, ...]
    attempt: Attempt | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()

    @property
    def is_started(self) -> bool:
        return self.attempt is not None or bool(self.problem)


def answer_to(exercise: Exercise, components: Sequence[Component]) -> Answer:
    """What was found of an exercise, among all components of a notebook's chapter."""
    own = tuple(part for part in components if part.exercise == exercise)
    notes = tuple(dict.fromkeys(note for part in own for note in part.notes))
    started = [part for part in own if part.state is not State.NOT_STARTED]
    if not started:
        return Answer(exercise, own, notes=notes)
    written = [part for part in started if part.statements]
    if not written:
        return Answer(exercise, own, problem="The cell is no Python.", notes=notes)
    try:
        code = code_of(exercise.module, written, components)
    except (GearworksError, SyntaxError, ValueError, RecursionError) as error:
        problem = f"What it needs could not be gathered: {error}."
        return Answer(exercise, own, problem=problem, notes=notes)
    missing = tuple(part.name for part in own if part not in written)
    attempt = Attempt(exercise.name, code.text, missing)
    return Answer(exercise, own, attempt, notes=(*notes, *code.notes), lent=code.lent)


def report_on(answer: Answer, workers: Workers, *, public: bool | None = None,
              seed: int | None = None, diagnose: bool = False,
              memory: Memory | None = None) -> Report:
    """What the checks find of it, as of `judge`. Raises LookupError when there are none."""
    name = answer.exercise.name
    untouched = not_attempted(name, public=public)
    if not answer.is_started:
        return untouched
    if answer.attempt is None:
        return Report(name, (), untouched.total, problem=answer.problem)
    if not_here := why_not_here(name):
        return Report(name, (), untouched.total,
                      problem=f"It cannot be checked here: {not_here}")
    return judge(answer.attempt, workers, public=public, seed=seed, diagnose=diagnose,
                 memory=memory)
