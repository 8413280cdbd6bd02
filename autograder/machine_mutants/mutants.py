"""All mutants of an exercise: each operator at each place of what the learner writes.

What is given to the learner (signatures, docstrings, annotations, given methods) stays as it
is, and so do the words of errors. The rest of the module does too, byte for byte: the smallest
statement around a change is written anew.
"""

import ast
import copy
import difflib
import hashlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from autograder.machine_mutants.operators import OPERATORS
from autograder.machine_mutants.operators.operator import Operator, Place, Replacement, called
from autograder.reference.names import methods_of, module_of, names_of
from autograder.reference.source import Body, ModuleSource, module_source, span
from autograder.variants.mutation import edited_namespace, engine_module, reference_subjects

KEY_LENGTH = 10
NO_CODE = {"ctx", "kind", "type_comment", "type_params", "type_ignores"}


@dataclass(frozen=True)
class MachineMutant:
    """One small change of what a learner writes.

    component: the function or method that is changed. operator: by its name. line: in the
    reference's module. diff: the changed lines, before and after. key: of the definition as it
    is and as it becomes, whatever else is edited. first, last, text: the lines of the module
    that are replaced, and by what.
    """

    component: str
    operator: str
    line: int
    diff: str
    key: str
    first: int
    last: int
    text: str


@cache
def mutants_of(exercise: str, methods: tuple[str, ...] = ()) -> tuple[MachineMutant, ...]:
    """All mutants of an exercise, in the order of its lines.

    methods: those that the learner writes, where the exercise is a class and does not say it;
    see `ModuleSource.bodies`. Raises CuttingError when there is no such exercise.
    """
    module = module_source(module_of(exercise))
    bodies = [body for name in names_of(exercise)
              for body in module.bodies(name, methods or methods_of(exercise))]
    return tuple(mutants_in(module, bodies))


def mutants_in(module: ModuleSource, bodies: Iterable[Body],
               operators: Sequence[Operator] = OPERATORS) -> list[MachineMutant]:
    """All mutants of some functions or methods of a module."""
    modules = frozenset(name for name, (_, there) in module.imports.items() if not there)
    found: dict[str, MachineMutant] = {}
    for body in bodies:
        function = copy.deepcopy(next(
            node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)
            and (node.name, node.end_lineno) == (body.name, body.last)))
        for mutant in _mutants_of(function, body.component, modules, operators):
            found.setdefault(mutant.key, mutant)
    return list(found.values())


def applied(source: str, mutant: MachineMutant) -> str:
    """A module's text with a mutant's change."""
    lines = source.splitlines(keepends=True)
    return "".join([*lines[:mutant.first - 1], mutant.text, *lines[mutant.last:]])


def load(exercise: str, mutant: MachineMutant | None) -> list[Any]:
    """An exercise's subjects in the mutant. None makes the reference's anew, unchanged."""
    source = module_source(module_of(exercise)).text
    namespace, _ = edited_namespace(
        engine_module(exercise), source if mutant is None else applied(source, mutant),
        {*names_of(exercise)}, f"<mutant {exercise} {mutant.key if mutant else 'unchanged'}>")
    return [namespace.get(name, subject)
            for name, subject in zip(names_of(exercise), reference_subjects(exercise))]


def _mutants_of(function: ast.FunctionDef, component: str, modules: frozenset[str],
                operators: Sequence[Operator]) -> Iterator[MachineMutant]:
    before = _code_of(function)
    seen = {before}
    for site in _sites(function, modules):
        statement = site.statement
        old = ast.unparse(statement.node)
        for operator in operators:
            for new in [*operator.changes(site.node, site.place)]:
                if site.put(new):
                    after = _code_of(function)
                    made = after not in seen and _compiles(function)
                    text = "\n".join(map(ast.unparse, statement.now())) if made else ""
                    site.restore()
                    if not made:
                        continue
                    seen.add(after)
                    first, last = span(statement.node)
                    margin = " " * statement.node.col_offset
                    yield MachineMutant(
                        component, operator.name, site.node.lineno, _diff(old, text),
                        _key(component, before, after), first, last,
                        textwrap.indent(text, margin) + "\n")


@dataclass(frozen=True)
class _Slot:
    """Where a node hangs: a field of its parent, or a place in a list there."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def set(self, new: Sequence[ast.AST]) -> None:
        if self.index is None:
            setattr(self.parent, self.field, new[0])
        else:
            getattr(self.parent, self.field)[self.index:self.index + 1] = new

    def now(self, length: int = 1) -> list[ast.AST]:
        if self.index is None:
            return [getattr(self.parent, self.field)]
        return getattr(self.parent, self.field)[self.index:self.index + length]


class _Site:
    """A node that may be replaced, and the smallest statement around it."""

    def __init__(self, slot: _Slot, statement: "_Slot", place: Place):
        self.node, self.place = slot.node, place
        self._slot = slot
        self.statement = _Statement(statement)
        self._length = 1

    def put(self, new: Replacement) -> bool:
        """Hang a replacement into the tree; False where it does not fit there."""
        nodes = new if isinstance(new, list) else [new]
        if isinstance(new, list) and not isinstance(self.node, ast.stmt):
            if not isinstance(self.node, ast.expr) or len(nodes) != 1:
                return False
        if not isinstance(new, list) and isinstance(self.node, ast.stmt):
            return False
        nodes = nodes or [ast.Pass()]
        # a node must hang in one place only: what is moved is a copy
        nodes = [ast.copy_location(copy.deepcopy(node), self.node) for node in nodes]
        self._length = len(nodes)
        self._slot.set(nodes)
        if self._slot.node is self.statement.node:
            self.statement.length = len(nodes)
        return True

    def restore(self) -> None:
        if self._slot.index is None:
            self._slot.set([self.node])
        else:
            getattr(self._slot.parent, self._slot.field)[
                self._slot.index:self._slot.index + self._length] = [self.node]
        self.statement.length = 1


class _Statement:
    """A statement, and what stands in its place at the moment."""

    def __init__(self, slot: _Slot):
        self.node, self._slot, self.length = slot.node, slot, 1

    def now(self) -> list[ast.AST]:
        return self._slot.now(self.length)


def _sites(function: ast.FunctionDef, modules: frozenset[str]) -> Iterator[_Site]:
    """The nodes of a definition's body, outermost first, that a learner writes as code."""
    documented = ast.get_docstring(function) is not None
    for index in range(documented, len(function.body)):
        slot = _Slot(function.body[index], function, "body", index)
        yield from _below(slot, slot, (function,), modules)


def _below(slot: _Slot, statement: _Slot, ancestors: tuple[ast.AST, ...],
           modules: frozenset[str]) -> Iterator[_Site]:
    node = slot.node
    if isinstance(node, ast.stmt):
        statement = slot
    if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler)):
        yield _Site(slot, statement, Place(ancestors, modules))
    if isinstance(node, ast.Raise) or called(node).endswith(("Error", "warn")):
        return                                                  # the words of a message
    inner = (*ancestors, node)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
                node, (ast.FunctionDef, ast.AnnAssign, ast.arg)) or field == "msg":
            continue
        if isinstance(value, ast.AST):
            yield from _below(_Slot(value, node, field, None), statement, inner, modules)
        elif isinstance(value, list):
            skipped = isinstance(node, ast.FunctionDef) and field == "body" and (
                ast.get_docstring(node) is not None)
            for index, item in enumerate(value):
                words = isinstance(node, ast.JoinedStr) and isinstance(item, ast.Constant)
                if isinstance(item, ast.AST) and not words and not (skipped and index == 0):
                    yield from _below(_Slot(item, node, field, index), statement, inner,
                                      modules)


def _code_of(function: ast.FunctionDef) -> str:
    """The body of a definition as text in which only the code counts."""
    documented = ast.get_docstring(function) is not None
    return "\n".join(map(canonical, function.body[documented:]))


def canonical(node: object) -> str:
    """A node as text: its code alone, and the same in every version of Python.

    >>> canonical(ast.parse("x  = 1  # one"))
    'Module(body=[Assign(targets=[Name(id=x)],value=Constant(1))])'
    """
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!r})"
    if isinstance(node, ast.AST):
        fields = ",".join(f"{name}={canonical(value)}" for name, value in ast.iter_fields(node)
                          if name not in NO_CODE and value is not None and value != [])
        return f"{type(node).__name__}({fields})"
    return f"[{','.join(map(canonical, node))}]" if isinstance(node, list) else str(node)


def _compiles(function: ast.FunctionDef) -> bool:
    try:
        compile(ast.unparse(function), "<mutant>", "exec")
    except (SyntaxError, ValueError):                  # of text, what no version could write
        return False
    return True


def _key(component: str, before: str, after: str) -> str:
    return hashlib.sha256("\0".join([component, before, after]).encode()).hexdigest()[
        :KEY_LENGTH]


def _diff(before: str, after: str) -> str:
    """The lines that differ, each with - or + before it."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return "\n".join(line for line in lines if line[0] in "-+")
