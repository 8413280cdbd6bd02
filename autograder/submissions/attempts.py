"""Finds what a learner has written of each component, in notebooks that may be rearranged.

A cell belongs to an exercise by its grade id, else by its cell id; a cell without an exercise's
id belongs to it when it defines one of its names. What equals the start that the learner was
given is no attempt, and the last attempt wins, a finished one before one that is only begun.
Where exercises write methods of one class, it goes on from cell to cell, and the last attempt
at each method wins. Nothing is run.
"""

import ast
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from autograder.chapters.chapter import Chapter, Exercise
from autograder.chapters.cuts import cut_of
from autograder.reference.cutting import Cut
from autograder.reference.source import Definition, Function, module_source, span
from autograder.submissions.cells import Cell, Statement, attributes
from autograder.submissions.intake import Notebook
from gearworks.errors import GearworksError


ABSENT = "no cell defines it"


class State(StrEnum):
    """How far a component is."""

    FINISHED = "finished"           # nothing is left to write; it need not be right
    BEGUN = "begun"
    NOT_STARTED = "not started"


@dataclass(frozen=True)
class Component:
    """A function or class that an exercise asks for, and what was found of it.

    chapter: the stem of its file. statements: the learner's definition; of an exercise that
    writes a part of a class, one for each cell that continues it. open_methods: of a class,
    those that are still to be written. notebook, cell: where it was found. notes: what was
    strange about it.
    """

    chapter: str
    exercise: Exercise
    name: str
    state: State = State.NOT_STARTED
    notebook: Notebook | None = None
    cell: Cell | None = None
    statements: tuple[Statement, ...] = ()
    open_methods: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.exercise.module

    @property
    def path(self) -> str:
        """`module.name`, or `module.Class.method+method`."""
        return self.exercise.name if self.exercise.is_part else f"{self.module}.{self.name}"

    @property
    def fits_the_engine(self) -> bool:
        """Whether an engine runs with it: with all of it, or with methods that are named.

        Where an exercise names the methods of a class, some of them will do. Those of a class
        that is the learner's as a whole do not mix with the reference's.
        """
        return (self.state is State.FINISHED
                or 0 < len(self.open_methods) < len(self.exercise.methods))

    @property
    def place(self) -> str:
        """Where it was found, such as `04_transformer.ipynb, cell 31`."""
        return f"{self.notebook.name}, cell {self.cell.number}" if self.cell is not None else ""


def find_components(chapters: Sequence[Chapter],
                    notebooks: Sequence[Notebook]) -> list[Component]:
    """What the notebooks hold of every component of the chapters, in the chapters' order.

    A notebook that has a chapter's name comes before its copies.
    """
    found_in = {notebook: chapter_of(notebook, chapters) for notebook in notebooks}
    found = []
    for chapter in chapters:
        candidates = [notebook for notebook in notebooks if found_in[notebook] is chapter]
        own = f"{chapter.stem}.ipynb"
        candidates.sort(key=lambda each: (not each.name.startswith(own), each.name))
        for exercise in chapter.exercises:
            try:
                start = _start_of(exercise)
            except GearworksError as error:
                found += [Component(chapter.stem, exercise, name, notes=(error.what,))
                          for name in exercise.names]
                continue
            for name in exercise.names:
                attempts = [_find(chapter, exercise, name, start, notebook)
                            for notebook in candidates]
                best = min(attempts, key=lambda component: list(State).index(component.state),
                           default=None)
                if best is None:
                    best = Component(chapter.stem, exercise, name)
                others = [attempt.place for attempt in attempts
                          if attempt is not best and attempt.state is State.FINISHED]
                notes = (f"also in {'; '.join(others)}: not used",) if others else ()
                found.append(replace(best, notes=best.notes + notes))
    return found


@cache
def _start_of(exercise: Exercise) -> Cut:
    return cut_of(exercise)


def chapter_of(notebook: Notebook, chapters: Sequence[Chapter]) -> Chapter | None:
    """A notebook's chapter, by its cells' ids and checks, its name, and what it defines."""
    bound = {name for cell in notebook.cells for statement in cell.statements
             for name in statement.binds}

    def evidence(chapter: Chapter) -> tuple[int, ...]:
        ids = {exercise.grade_id for exercise in chapter.exercises}
        quoted = {quote + exercise.name + quote
                  for exercise in chapter.exercises for quote in "\"'"}
        names = {name for exercise in chapter.exercises for name in exercise.names}
        marked = sum(bool(ids & _bare(cell.ids)) for cell in notebook.cells)
        checked = sum("check(" in cell.source and any(name in cell.source for name in quoted)
                      for cell in notebook.cells)
        return (marked + checked, notebook.name.startswith(chapter.stem),
                notebook.name.startswith(chapter.stem[:2]), len(names & bound))

    best = max(chapters, key=evidence, default=None)
    return best if best is not None and any(evidence(best)) else None


def _bare(ids: Collection[str]) -> set[str]:
    """Ids without what marks the cells beside a solution cell."""
    return {id.removeprefix("check-").removeprefix("about-") for id in ids}


def _find(chapter: Chapter, exercise: Exercise, name: str, start: Cut,
          notebook: Notebook) -> Component:
    blank = Component(chapter.stem, exercise, name, notebook=notebook)
    own, free, foreign = [], [], []
    ids = {other.grade_id for other in chapter.exercises}
    foreign_ids = {other.grade_id for other in chapter.exercises
                   if not other.shares_its_class_with(exercise)}
    checks = {f"{prefix}-{id}" for id in ids for prefix in ("check", "about")}
    for cell in notebook.cells:
        if exercise.grade_id in cell.ids:
            own.append(cell)                    # a text cell, too: one key turns code into text
        elif checks.isdisjoint(cell.ids) and cell.kind == "code":
            (free if foreign_ids.isdisjoint(cell.ids) else foreign).append(cell)
    notes = []
    broken = [cell for cell in own
              if cell.error and (cell.kind == "code" or name in cell.source)]
    notes += [f"cell {cell.number} is no Python ({cell.error}): not used" for cell in broken]
    def attempts_in(cells: Sequence[Cell]) -> list[Component]:
        if not exercise.is_part:
            return _attempts(cells, blank, start)
        return _attempts_at_methods(cells, blank, start, {
            method for other in chapter.exercises if other.shares_its_class_with(exercise)
            for method in other.methods})

    attempts = attempts_in(sorted([*own, *free], key=lambda cell: cell.number))
    if not attempts and not own:                # its cell is gone: merged with another, perhaps
        attempts = attempts_in(foreign)
        free_broken = [cell for cell in free if cell.error and f"def {name}(" in cell.source]
        notes += [f"cell {cell.number} is no Python ({cell.error}): not used"
                  for cell in free_broken]
        if not attempts and not free_broken:
            notes.append(ABSENT)
    state = min((attempt.state for attempt in attempts), key=list(State).index,
                default=State.NOT_STARTED)
    attempts = [attempt for attempt in attempts if attempt.state is state]
    if state is State.NOT_STARTED:
        return replace(blank, state=State.BEGUN if broken else state,
                       cell=broken[-1] if broken else None, notes=tuple(notes))
    if len(attempts) > 1:
        numbers = ", ".join(str(attempt.cell.number) for attempt in attempts)
        notes.append(f"cells {numbers} all define it: the last one counts")
    last = attempts[-1]
    if not own and any(cell.ids for cell in notebook.cells):
        notes.append(f"its own cell is gone: cell {last.cell.number} defines it")
    if last.cell.kind != "code":
        notes.append(f"cell {last.cell.number} has become a text cell: read as code")
    return replace(last, notes=tuple(notes))


def _attempts(cells: Sequence[Cell], blank: Component, start: Cut) -> list[Component]:
    exercise, name = blank.exercise, blank.name
    given = next(node for node in ast.parse(start.stub).body
                 if isinstance(node, Definition) and node.name == name)
    found = []
    for cell in cells:
        statements = _definition(cell.statements, name, given)
        if not statements:
            continue
        node = statements[-1].node if len(statements) == 1 else None
        state, open_methods = State.FINISHED, ()
        if isinstance(node, Function):
            state = State.BEGUN if _is_open(node) else State.FINISHED
        elif isinstance(node, ast.ClassDef) and isinstance(given, ast.ClassDef):
            state, open_methods = _class_state(node, given, exercise, name)
        found.append(replace(blank, state=state, cell=cell, statements=statements,
                             open_methods=open_methods))
    return [component for component in found if component.state is not State.NOT_STARTED]


def _attempts_at_methods(cells: Sequence[Cell], blank: Component, start: Cut,
                         exercised: Collection[str]) -> list[Component]:
    """What all cells together hold of an exercise's methods, as one attempt; or none.

    exercised: the methods of the class that any exercise writes. What else the cells add to the
    class, or change in it, comes along, up to the last attempt.
    """
    name, methods = blank.name, blank.exercise.methods
    starts = {_shape(part) for node in ast.parse(start.stub).body
              if isinstance(node, ast.ClassDef) for part in node.body}
    given = {_shape(part) for part in module_source(blank.module).definition(name).body}

    def counts(part: ast.stmt) -> bool:
        if not isinstance(part, Function):
            return not isinstance(part, ast.Pass | ast.Expr)
        if part.name in exercised:
            return part.name in methods and not _is_open(part) and _shape(part) not in starts
        return _shape(part) not in given

    found: list[Statement] = []
    written: set[str] = set()
    end, last = 0, None
    for cell in cells:
        for statement in cell.statements:
            if not isinstance(statement.node, ast.ClassDef) or statement.node.name != name:
                continue
            statement = _with_members(statement, counts)
            if statement is not None:
                found.append(statement)
                own = attributes(statement.node) & {*methods}
                written |= own
                end, last = (len(found), cell) if own else (end, last)
    if not written:
        return []
    open_methods = tuple(method for method in methods if method not in written)
    return [replace(blank, state=State.BEGUN if open_methods else State.FINISHED, cell=last,
                    statements=tuple(found[:end]), open_methods=open_methods)]


def _with_members(statement: Statement,
                  counts: Callable[[ast.stmt], bool]) -> Statement | None:
    """A class that continues itself by those of its members that count; None if none does."""
    text, node = statement.text, statement.node
    node = ast.parse(text).body[0]
    borders = [node.lineno, *(line for part in node.body for line in span(part))]
    if any(start >= end for start, end in zip(borders[::2], borders[1::2])):
        text = ast.unparse(node)                              # two members on a line
        node = ast.parse(text).body[0]
    lines, kept = text.split("\n"), []
    above = span(node.body[0])[0] - 1
    for part in node.body:
        if counts(part):
            kept += lines[above:part.end_lineno]              # with the comments above it
        above = part.end_lineno
    if not kept:
        return None
    bases = [ast.unparse(base) for base in node.bases]
    if node.name not in bases:
        bases = [node.name]
    text = "\n".join([f"class {node.name}({', '.join(bases)}):", *kept])
    return replace(statement, node=ast.parse(text).body[0], text=text)


def _definition(statements: Sequence[Statement], name: str,
                given: Definition) -> tuple[Statement, ...]:
    """A cell's statements that define a name: the last attempt, and what wraps it later."""
    binding = [statement for statement in statements
               if name in statement.binds and not _is_given(statement.node, given)]
    written = [statement for statement in binding
               if not isinstance(statement.node, Function) or not _is_open(statement.node)]
    binding = written or binding[-1:]
    last = max((at for at, statement in enumerate(binding)
                if isinstance(statement.node, Definition)), default=0)
    return tuple(binding[last:])


def _is_given(node: ast.stmt, given: Definition) -> bool:
    """Whether what binds an exercise's name is no attempt: stub, reference or plain value."""
    if isinstance(node, Definition):
        return _shape(node) == _shape(given)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "gearworks"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is None or isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Import)


def _shape(node: ast.AST) -> str:
    """A definition's syntax tree without its docstrings, as text."""
    node = ast.parse(ast.unparse(node))
    for part in ast.walk(node):
        if isinstance(part, Definition) and ast.get_docstring(part) is not None:
            del part.body[0]
    return ast.dump(node)


def _is_open(node: Function) -> bool:
    """Whether a function is to be written: it is empty, or raises NotImplementedError."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if all(isinstance(part, ast.Pass)
           or isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
           for part in body):
        return True
    for part in body:
        if isinstance(part, ast.Raise):
            raised = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
            return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
        if _ends(part):
            return False
    return False


def _ends(statement: ast.stmt) -> bool:
    """Whether nothing that follows a statement is ever reached."""
    if isinstance(statement, ast.If):
        return any(map(_ends, statement.body)) and any(map(_ends, statement.orelse))
    if isinstance(statement, ast.With):
        return any(map(_ends, statement.body))
    if isinstance(statement, ast.While):
        is_endless = isinstance(statement.test, ast.Constant) and bool(statement.test.value)
        return is_endless and not any(isinstance(part, ast.Break)
                                      for part in ast.walk(statement))
    return isinstance(statement, ast.Return | ast.Raise)


def _class_state(node: ast.ClassDef, given: ast.ClassDef, exercise: Exercise,
                 name: str) -> tuple[State, tuple[str, ...]]:
    """How far a class is, and which of its methods are still to be written."""
    bodies = module_source(exercise.module).bodies(name, exercise.methods)
    starts = {part.name: part for part in given.body if isinstance(part, Function)}
    written = {part.name: part for part in node.body if isinstance(part, Function)}
    assigned = {target.id for part in node.body if isinstance(part, ast.Assign)
                for target in part.targets if isinstance(target, ast.Name)}
    is_data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    open_methods = []
    for method in (body.name for body in bodies):
        own = written.get(method)
        is_inherited = own is None and method == "__init__" and (is_data or node.bases)
        if method in assigned or is_inherited:
            continue
        if own is None or _is_open(own) or _shape(own) == _shape(starts[method]):
            open_methods.append(method)
    if not open_methods:
        return State.FINISHED, ()
    return State.BEGUN, tuple(open_methods)
