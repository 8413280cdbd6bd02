"""Puts a learner's definitions into a module of the reference: the cut, the other way round.

A definition brings the statements that it depends on: from its own cell first, then from other
cells of its notebook. What else the cells do is left behind. Names that would mean something
else in the module are renamed; its own globals, and those that the reference gives the learner,
are the module's.
"""

import ast
import builtins
import importlib
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from autograder.reference.cutting import starting_lines
from autograder.reference.names import home_of, short_name
from autograder.reference.source import (CuttingError, Definition, Function, ModuleSource,
                                         module_source, span)
from autograder.submissions.attempts import Component
from autograder.submissions.cells import Cell, Statement, attributes, renamed

FUTURE = "from __future__ import annotations"
# What IPython lends to every cell.
LENT = {"display": "IPython.display", "get_ipython": "IPython"}
ROOTS_TO_LOOK_INTO = sys.stdlib_module_names | {"numpy", "gearworks"}


@dataclass(frozen=True)
class Graft:
    """A learner's component as it stands in a module.

    text: whole lines. notes: what could not be brought along. lent: names of other exercises
    that it uses, and that are the engine's there.
    """

    component: Component
    text: str
    notes: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()

    @property
    def begin(self) -> str:
        return f"# --- yours: {self.component.path}, from {self.component.place} ---"

    @property
    def end(self) -> str:
        return f"# --- end of {self.component.path} ---"


@dataclass(frozen=True)
class GraftedModule:
    """The text of a module of the reference, with learners' definitions in place of its own."""

    text: str
    grafts: tuple[Graft, ...]

    def graft_at(self, line: int) -> Graft | None:
        """The graft that a line stands in, counted from 1; None for the reference's own."""
        lines = self.text.split("\n")
        return next((graft for graft in self.grafts
                     if lines.index(graft.begin) < line <= lines.index(graft.end) + 1), None)


def graft(module: str, components: Sequence[Component],
          others: Sequence[Component]) -> GraftedModule:
    """Put components into the module of the reference that they belong to.

    others: every component of the course: where one uses another of its chapter, it uses the
    engine's. What is still to be written of a class is filled with the reference's methods.
    """
    source = module_source(module)
    grafts = _grafts_of(source, components, others, whole=True)
    lines = source.text.splitlines()
    for part in reversed(grafts):
        first, last = span(source.definition(part.component.name))
        own = [part.begin, *part.text.split("\n"), part.end]
        if part.component.exercise.is_part:                  # it goes on with the reference's
            lines[last:last] = ["", "", *own]
        else:
            lines[first - 1:last] = own
    if not source.delays_annotations and _delays_annotations(components):
        first = source.tree.body[0] if source.tree.body else None
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        lines.insert(first.end_lineno if documented else 0, f"\n{FUTURE}")
    header = [f"# Assembled by `autograder assemble`: the reference's {module}, with "
              "definitions that are yours:",
              *(f"#   {part.component.path.removeprefix(f'{module}.')}    from "
                f"{part.component.place}" for part in reversed(grafts)),
              "# It is made anew each time. Change the notebook, not this file."]
    return GraftedModule("\n".join([*header, *lines]) + "\n", tuple(grafts))


@dataclass(frozen=True)
class Code:
    """Components as code that runs among their module's names. notes, lent: as of `Graft`."""

    text: str
    notes: tuple[str, ...]
    lent: tuple[str, ...]


def code_of(module: str, components: Sequence[Component],
            others: Sequence[Component]) -> Code:
    """Components of one module as code by itself.

    What is still to be written of a class stays as the learner has it. others: as for `graft`.
    """
    source = module_source(module)
    grafts = _grafts_of(source, components, others, whole=False)
    future = [FUTURE] if source.delays_annotations or _delays_annotations(components) else []
    return Code("\n\n\n".join([*future, *(part.text for part in grafts)]),
                tuple(note for part in grafts for note in part.notes),
                tuple(dict.fromkeys(name for part in grafts for name in part.lent)))


def _grafts_of(module: ModuleSource, components: Sequence[Component],
               others: Sequence[Component], whole: bool) -> list[Graft]:
    """Of one module, in its order. They share what they have in common."""
    exercised = {(other.chapter, other.name): other for other in others}
    taken: dict[str, str] = {}                  # name in the module -> the source that gives it
    in_order = sorted(components, key=lambda part: module.definition(part.name).lineno)
    return [_graft(module, component, exercised, taken, whole) for component in in_order]


def _delays_annotations(components: Sequence[Component]) -> bool:
    """Whether one was written where annotations are not evaluated.

    IPython keeps that for all cells after the one that says so.
    """
    return any(isinstance(statement.node, ast.ImportFrom)
               and statement.node.module == "__future__"
               for component in components
               for cell in component.notebook.cells if cell.kind == "code"
               for statement in cell.statements)


def _graft(module: ModuleSource, component: Component,
           exercised: Mapping[tuple[str, str], Component], taken: dict[str, str],
           whole: bool) -> Graft:
    search = _Search(module, component, exercised)
    for statement in component.statements:
        search.follow(statement)
    brought = [statement for statement in search.brought
               if statement not in component.statements]
    names: dict[str, str] = {}                               # new names of what would clash
    for statement in brought:                           # what it depends on has its name by now
        text = renamed(statement, names)
        for name in sorted(statement.binds):
            _settle(module, component, name, text, names, taken)
    imports, parts = list(search.imports), []
    own: dict[str, str] = {}
    for statement in brought:
        text = renamed(statement, names)
        bound = {names.get(name, name) for name in statement.binds}
        if bound and all(taken.get(name) == text for name in bound):
            continue                                         # an earlier graft has brought it
        own |= dict.fromkeys(bound, text)
        is_import = isinstance(statement.node, ast.Import | ast.ImportFrom)
        (imports if is_import else parts).append(text)
    taken |= own
    others = {old: new for old, new in names.items() if old != component.name}
    for statement in component.statements:
        text = renamed(statement, others)
        if isinstance(statement.node, ast.ClassDef) and not component.exercise.is_part:
            text = _with_methods(text, module, component, whole)
        parts.append(text)
    if component.exercise.is_part and component.open_methods and not whole:
        parts.append(_unwritten(component))
    head = ["\n".join(dict.fromkeys(imports))] if imports else []
    return Graft(component, "\n\n\n".join(head + parts), tuple(dict.fromkeys(search.notes)),
                 tuple(dict.fromkeys(search.lent)))


def _settle(module: ModuleSource, component: Component, name: str, text: str,
            names: dict[str, str], taken: Mapping[str, str]) -> None:
    """Find a name for what a graft brings: its own, unless somebody else has a use for it.

    The others are the module, Python, and the grafts before.
    """
    def is_free(name: str) -> bool:
        if name in taken:
            return taken[name] == text
        return (name not in module.bound_names and not hasattr(builtins, name)
                and not name.startswith("__"))

    if name in names or is_free(name):
        return
    new = f"{name}_of_{component.name}"
    while not is_free(new):
        new += "_"
    names[name] = new


class _Search:
    """Finds the statements that a definition depends on.

    brought: each after those that it depends on itself, those that lend something of the
    engine, or of IPython, included. imports: lines that bind no name of their own. lent: names
    of other exercises.
    """

    def __init__(self, module: ModuleSource, component: Component,
                 exercised: Mapping[tuple[str, str], Component]):
        self.brought: list[Statement] = []
        self.imports: list[str] = []
        self.notes: list[str] = []
        self.lent: list[str] = []
        self._module, self._component, self._exercised = module, component, exercised
        self._seen: set[Statement] = set()
        self._resolved: set[tuple[str, Cell]] = set()
        self._code = [cell for cell in component.notebook.cells
                      if cell.kind == "code" or cell == component.cell]

    def follow(self, statement: Statement) -> None:
        """Bring what a statement uses, then the statement."""
        if statement in self._seen:
            return
        self._seen.add(statement)
        for name in sorted(statement.uses):
            self._resolve(name, statement.cell)
        self.brought.append(statement)

    def _resolve(self, name: str, cell: Cell) -> None:
        if name == self._component.name or (name, cell) in self._resolved:
            return
        self._resolved.add((name, cell))
        providers = self._providers(name, cell)
        exercised = self._exercised.get((self._component.chapter, name))
        if exercised is not None and not self._is_private(exercised, cell, providers):
            self._lend(exercised.module, name)
            if name not in self._component.exercise.names:
                self.lent.append(name)
            return
        is_builtin = hasattr(builtins, name)
        if is_builtin and not any(_gives_meaning(provider) and provider.cell == cell
                                  for provider in providers):
            return
        for provider in providers:
            self._bring(name, provider)
        if not providers and not is_builtin and name not in self._module.bound_names:
            self._guess(name)

    def _is_private(self, exercised: Component, cell: Cell,
                    providers: Sequence[Statement]) -> bool:
        """Whether a name of an exercise is something else in a cell: a helper of its own."""
        return (exercised.name not in self._component.exercise.names and exercised.cell != cell
                and any(provider.cell == cell for provider in providers))

    def _providers(self, name: str, cell: Cell) -> list[Statement]:
        """What makes a name what it is for a cell: its statements, or the nearest before it."""
        before = [other for other in self._code if other.number < cell.number]
        after = [other for other in self._code if other.number > cell.number]
        for place in [cell, *reversed(before), *after]:
            statements = place.statements
            binding = [statement for statement in statements if name in statement.binds]
            if not binding:
                continue
            last = max((at for at, part in enumerate(binding)
                        if isinstance(part.node, Definition)), default=0)
            binding = binding[last:]
            if any(map(_gives_meaning, binding)):
                return binding
            return [statement for statement in statements
                    if statement in binding
                    or name in statement.changes and statement.index > binding[0].index]
        return []

    def _bring(self, name: str, provider: Statement) -> None:
        if not provider.is_quiet:
            self.notes.append(f"{name} of cell {provider.cell.number} is not brought along: it "
                              "does more than compute a value")
            return
        node = provider.node
        if isinstance(node, ast.ImportFrom) and self._is_the_modules(name, node):
            return
        if isinstance(node, ast.ImportFrom) and short_name(node.module or ""):
            self._lend(short_name(node.module), node.names[0].name, name)
            return
        if isinstance(node, ast.Import) and name in self._module.imports:
            alias = node.names[0]
            there, member = self._module.imports[name]
            if not member and alias.name in there.split(", "):
                return
            if not member and not alias.asname and there.partition(".")[0] == name:
                self.imports.append(provider.text)           # import a.b beside import a
                return
        self.follow(provider)

    def _is_the_modules(self, name: str, node: ast.ImportFrom) -> bool:
        return (not node.level
                and self._module.imports.get(name) == (node.module, node.names[0].name))

    def _lend(self, module: str, there: str, name: str = "") -> None:
        """Make a name mean what a module of the engine has by that name, or by another."""
        name, home = name or there, home_of(module)
        is_own = module == self._module.name and name == there
        if is_own or self._module.imports.get(name) == (home, there):
            return
        if _is_cycle(self._module.name, module):        # it loads later: look when it is called
            self._borrow(f"def {name}(*arguments, **named):\n"
                         f"    from {home} import {there} as found\n"
                         "    return found(*arguments, **named)")
        else:
            self._borrow(_import_line(home, there, name))

    def _borrow(self, text: str) -> None:
        if all(statement.text != text for statement in self.brought):
            node = ast.parse(text).body[0]
            self.brought.append(Statement(node, text, self._component.cell, -1))

    def _guess(self, name: str) -> None:
        """A name that no cell binds: IPython's, or one that an import of everything brings."""
        if name in LENT:
            self._borrow(_import_line(LENT[name], name))
            return
        for cell in self._code:
            for node in (statement.node for statement in cell.statements):
                is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
                if is_star and _has(node.module or "", name):
                    self._borrow(_import_line(node.module, name))
                    return
        self.notes.append(f"no cell defines {name}, which it uses")


def _gives_meaning(statement: Statement) -> bool:
    return isinstance(statement.node, Definition | ast.Import | ast.ImportFrom)


def _import_line(module: str, there: str, name: str = "") -> str:
    return f"from {module} import {there}" + (f" as {name}" if name not in ("", there) else "")


def _has(module: str, name: str) -> bool:
    """Whether a module that is safe to import has a name; of others it is assumed."""
    if module.partition(".")[0] not in ROOTS_TO_LOOK_INTO:
        return True
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@cache
def _is_cycle(module: str, imported: str) -> bool:
    """Whether a module of the engine is loaded, however indirectly, when another one is."""
    target, seen, waiting = home_of(module), set(), [home_of(imported)]
    while waiting:
        home = waiting.pop()
        if home == target:
            return module != imported
        if home in seen or not short_name(home):
            continue
        seen.add(home)
        waiting.append(home.rpartition(".")[0])       # a package is loaded before what is in it
        try:
            source = module_source(short_name(home))
        except CuttingError:                                 # a name in a module
            continue
        for origin, there in source.imports.values():
            waiting += [name for each in origin.split(", ")
                        for name in (each, f"{each}.{there}")]
    return False


def _with_methods(text: str, module: ModuleSource, component: Component, whole: bool) -> str:
    """A class's text with given methods that were lost, and if `whole` with unwritten ones."""
    node = _class_in(text)
    if node.body[0].lineno == node.lineno:                   # a body on the line of its `class`
        text = ast.unparse(node)
        node = _class_in(text)
    reference = module.definition(component.name)
    if not isinstance(reference, ast.ClassDef):
        return text
    wanted = {body.name for body in module.bodies(component.name, component.exercise.methods)}
    bound = attributes(node)
    lines = text.split("\n")
    margin = re.match(r"[ \t]*", lines[node.body[0].lineno - 1])[0]
    added: list[str] = []
    for method in reference.body:
        if not isinstance(method, Function):
            continue
        if method.name in component.open_methods:
            stays = not whole
        else:
            stays = method.name in wanted or method.name in bound
        if stays:
            continue
        own = textwrap.dedent("\n".join(module.lines(*span(method))))
        added.append(textwrap.indent(own, margin))
    if whole:                          # from the last to the first, so that the others stay put
        for part in reversed(node.body):
            if isinstance(part, Function) and part.name in component.open_methods:
                first, last = span(part)
                lines[first - 1:last] = [f"{margin}# {part.name} is the reference's, below"]
    if added:
        lines += ["", f"{margin}# The reference's: not yours to write, or still to be written.",
                  *added]
    return "\n".join(lines)


def _unwritten(component: Component) -> str:
    """What goes on with a class by the methods that are still to be written."""
    lines = [f"class {component.name}({component.name}):"]
    for method in component.open_methods:
        path = f"{component.module}.{component.name}.{method}"
        lines += [f"    def {method}(self, *arguments, **named):",
                  *starting_lines(path, " " * 8), ""]
    return "\n".join(lines).rstrip()


def _class_in(text: str) -> ast.ClassDef:
    return next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
