"""A notebook as it should have been handed in, from one that something has happened to.

It has the learner's cells in their order, each exercise's cell under its id, each check as it
was released, behind its exercise, and the answers to an instructor's own questions. So nbgrader
reads it, and formgrader shows it.
"""

from collections.abc import Mapping, Sequence

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from autograder.chapters.chapter import Chapter
from autograder.submissions.attempts import State, chapter_of, find_components
from autograder.submissions.cells import Cell
from autograder.submissions.intake import Notebook


def restored(notebooks: Sequence[Notebook], chapter: Chapter, chapters: Sequence[Chapter],
             release: NotebookNode) -> NotebookNode:
    """The notebook for nbgrader. release: the one that was given out.

    What counts of each exercise is what counts for the judge (see `attempts`).
    """
    own = [each for each in notebooks if chapter_of(each, chapters) is chapter]
    components = find_components([chapter], own)
    given = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in release.cells
             if "nbgrader" in cell.metadata}
    counted = [part for part in components if part.state is not State.NOT_STARTED]
    main = max(own, key=lambda notebook: sum(part.notebook is notebook for part in counted),
               default=None)
    places: dict[int, list[str]] = {}               # number of a cell of `main`: grade ids
    elsewhere: dict[str, list[Cell]] = {}
    for exercise in chapter.exercises:
        cells = {id(statement.cell): statement.cell for part in counted
                 if part.exercise == exercise for statement in part.statements}
        if not cells and (part := next((part for part in components
                                        if part.exercise == exercise and part.cell), None)):
            cells = {id(part.cell): part.cell}      # no Python: shown all the same
        first = [cell for cell in cells.values() if main is not None and cell in main.cells]
        if len(cells) == 1 and first and first[0].number not in places:
            places[first[0].number] = [exercise.grade_id]
        else:
            elsewhere[exercise.grade_id] = list(cells.values())
    return _assembled(chapter, main, places, elsewhere, given, release)


def _assembled(chapter: Chapter, main: Notebook | None, places: Mapping[int, Sequence[str]],
               elsewhere: Mapping[str, Sequence[Cell]], given: Mapping[str, NotebookNode],
               release: NotebookNode) -> NotebookNode:
    ids = set(given) | {f"about-{exercise.grade_id}" for exercise in chapter.exercises}
    checks = {exercise.grade_id: given.get(exercise.check_id)
              for exercise in chapter.exercises}
    about = {cell["id"]: cell for cell in release.cells if cell.get("id", "").startswith(
        "about-")}
    exercised = {id for exercise in chapter.exercises
                 for id in (exercise.grade_id, exercise.check_id)}
    asked = {id: cell for id, cell in given.items() if id not in exercised}
    cells: list[NotebookNode] = []

    def exercise_cells(grade_id: str, source: str) -> None:
        solution = nbformat.from_dict(given[grade_id])
        solution.source = source
        cells.extend(each for each in (about.get(f"about-{grade_id}"), solution,
                                       checks[grade_id]) if each is not None)

    for cell in main.cells if main is not None else ():
        if cell.number in places:
            for grade_id in places[cell.number]:
                exercise_cells(grade_id, cell.source)
        elif question := next((id for id in cell.ids if id in asked), None):
            answer = nbformat.from_dict(asked.pop(question))
            if not answer.metadata["nbgrader"].get("locked"):
                answer.source = cell.source
            cells.append(answer)
        elif ids.isdisjoint(cell.ids):
            cells.append(_plain(cell))
        elif cell.kind == "code" and set(cell.ids) & {each.grade_id
                                                      for each in chapter.exercises}:
            cells.append(_plain(cell))              # another attempt, which does not count
    for grade_id, found in elsewhere.items():
        if grade_id in given:
            exercise_cells(grade_id, "\n\n\n".join(cell.source for cell in found)
                           or given[grade_id].source)
    cells += asked.values()                         # questions that were deleted
    for at, cell in enumerate(cells):
        cells[at] = nbformat.from_dict(cell)
    _make_ids_single(cells)
    return new_notebook(cells=cells, metadata=nbformat.from_dict(release.metadata))


def _plain(cell: Cell) -> NotebookNode:
    """A cell that no grade hangs on, under an id that is no exercise's."""
    make = {"code": new_code_cell, "raw": new_raw_cell}.get(cell.kind, new_markdown_cell)
    return make(cell.source, id=f"cell-{cell.number}")


def _make_ids_single(cells: Sequence[NotebookNode]) -> None:
    seen: set[str] = set()
    for number, cell in enumerate(cells, start=1):
        if cell["id"] in seen:
            cell["id"] = f"cell-{number}-again"
        seen.add(cell["id"])
