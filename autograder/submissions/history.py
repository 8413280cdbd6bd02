"""The notebook that a kernel knows: the cells that it has run, as a notebook's file has them.

Of a cell that was changed and run again, the definitions stand there as they are now.
"""

import ast
from collections.abc import Collection, Sequence
from functools import cache

from autograder.chapters.chapter import Chapter
from autograder.submissions.cells import Cell, Statement, attributes
from autograder.submissions.intake import Notebook

NAME = "this notebook"


def notebook_so_far(inputs: Sequence[str], chapter: Chapter) -> Notebook:
    """The cells of a chapter's notebook, from what a kernel was given, oldest first.

    inputs: sources as they were typed; their places are their numbers, In[1] being the first.
    Of exercised definitions only the last one is there, be it the stub again.
    """
    names = {name for exercise in chapter.exercises for name in exercise.names}
    cells: list[Cell] = []
    later: list[set[str]] = []
    seen: set[str] = set()
    for number, source in reversed(list(enumerate(inputs))):
        if not source.strip() or source in seen:
            continue
        seen.add(source)
        cell = _cell(number, source)
        defined = {statement: _defined(statement, names) for statement in cell.statements}
        stays = [statement for statement, own in defined.items()
                 if not own or not any(own <= others for others in later)]
        if len(stays) < len(defined):               # what else such a cell does, it has done
            cell = _cell(number, "\n".join(statement.text for statement in stays))
        if not cell.source:
            continue
        later.append({name for statement in stays for name in defined[statement]})
        cells.append(cell)
    return Notebook(NAME, tuple(reversed(cells)))


def defines(notebook: Notebook, names: Collection[str]) -> bool:
    """Whether any cell gives one of these names a value."""
    return any(statement.binds & {*names}
               for cell in notebook.cells for statement in cell.statements)


@cache                                      # a cell keeps what was found in it
def _cell(number: int, source: str) -> Cell:
    return Cell(number, "code", source)


def _defined(statement: Statement, names: Collection[str]) -> set[str]:
    """The exercised names that it defines; of a class that it continues, the methods."""
    node = statement.node
    goes_on = isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id == node.name for base in node.bases)
    if goes_on and node.name in names:
        return {f"{node.name}.{name}" for name in attributes(node)}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    return {*statement.binds} & {*names}
