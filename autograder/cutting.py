"""Cuts definitions out of the reference: what a learner starts from, and what the solution is.

A cut of a function or class keeps its decorators, signature, annotations, docstring and constants, empties the bodies
that the learner writes, and brings the imports that those bodies need. It works on text, so that what was written by
hand stays as it was. The overlay goes the other way round, with the same definitions and spans.
"""

import ast
import importlib.util
import symtable
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gearworks.errors import GearworksError

# nbgrader takes out what is between these marks. The first one goes on with the name of what stands between them.
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class CuttingError(GearworksError, ValueError):
    """The reference has no such definition, or one that cannot be cut."""


def span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, first and last: from 1, both included, and so are decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]), node.end_lineno


@dataclass(frozen=True)
class Body:
    """What is to be written of a function or method: the lines `first` to `last`, below its docstring.

    component: `module.name` or `module.Class.method`. margin: the spaces before its statements.
    """

    component: str
    first: int
    last: int
    margin: str

    @property
    def name(self) -> str:
        """Of the function or method."""
        return self.component.rpartition(".")[2]


@dataclass(frozen=True)
class ModuleSource:
    """A module as text. name: without the package, such as "tokenizer" or "kernels.cpu"."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The functions and classes at its top level."""
        return {node.name: node for node in self.tree.body if isinstance(node, Definition)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """What its imports bind: name -> (module, name there), or (module, "") for a module; not conditional ones.

        `import a.b` and `import a.c` bind one name, `a`, and need both: ("a.b, a.c", "").
        """
        bound: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    before = f"{bound[name][0]}, " if name in bound and not alias.asname else ""
                    bound[name] = (before + alias.name, "")
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                bound |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        return bound

    @cached_property
    def bound_names(self) -> frozenset[str]:
        """Every name that it binds at its top level."""
        return frozenset(_bound(symtable.symtable(self.text, self.name, "exec")))

    @cached_property
    def delays_annotations(self) -> bool:
        """Whether it says `from __future__ import annotations`."""
        return any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in self.tree.body)

    def lines(self, first: int, last: int) -> list[str]:
        """The lines from `first` to `last`, both included, counted from 1."""
        return self.text.splitlines()[first - 1:last]

    def definition(self, name: str) -> Definition:
        """A definition at the top level. Raises CuttingError when there is none of this name."""
        if name not in self.definitions:
            raise CuttingError(f"there is no {self.name}.{name}", "the module defines no such function or class",
                               "is the name right?")
        return self.definitions[name]

    def bodies(self, name: str, methods: Collection[str] = ()) -> list[Body]:
        """What is to be written of a definition: a function's body, or the bodies of a class's methods in their order.

        methods: empty means all that do not begin with a single underscore.
        Raises CuttingError for a method that does not exist, a body on the line of its `def`, a class without methods.
        """
        node = self.definition(name)
        if isinstance(node, Function):
            if methods:
                raise CuttingError(f"{self.name}.{name} has no methods", "it is a function", "leave `methods` out")
            return [self._body(node, f"{self.name}.{name}")]
        found = [method for method in node.body if isinstance(method, Function)]
        unknown = {*methods} - {method.name for method in found}
        if unknown:
            raise CuttingError(f"{self.name}.{name} has no method {min(unknown)}", "the exercise is to write it",
                               "its methods are " + ", ".join(method.name for method in found))
        wanted = [method for method in found
                  if (method.name in methods if methods else method.name.startswith("__") or method.name[0] != "_")]
        if not wanted:
            raise CuttingError(f"there is nothing to write in {self.name}.{name}", "it has no public method",
                               "exercise a function, or name the methods")
        return [self._body(method, f"{self.name}.{name}.{method.name}") for method in wanted]

    def _body(self, node: Function, component: str) -> Body:
        documented = ast.get_docstring(node) is not None
        statements = node.body[documented:]
        if not statements:
            raise CuttingError(f"{component} has no body", "there is nothing to write below its docstring",
                               "give the definition instead of exercising it")
        above = node.body[0].end_lineno if documented else max(
            [node.lineno, *(part.end_lineno for part in ast.walk(node.args) if hasattr(part, "end_lineno")),
             node.returns.end_lineno if node.returns else 0])
        lines = self.text.splitlines()
        first = statements[0].lineno
        if first == above:
            raise CuttingError(f"{component} cannot be cut", "its body is on the line of its `def`", "begin a new line")
        while first - 1 > above and (not (line := lines[first - 2].strip()) or line.startswith("#")):
            first -= 1                                      # comments above the first statement belong to the solution
        return Body(component, first, node.end_lineno, " " * statements[0].col_offset)


def module_source(module: str) -> ModuleSource:
    """A module of the `gearworks` that is first on the path. Raises CuttingError when there is none.

    >>> "softmax" in module_source("layers").definitions
    True
    """
    try:
        spec = importlib.util.find_spec(f"gearworks.{module}")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise CuttingError(f"there is no module gearworks.{module}", "a component is named after it: `module.name`",
                           "is the name right?")
    return ModuleSource(module, Path(spec.origin).read_text(encoding="utf-8"))


def global_names(source: str) -> set[str]:
    """The names that code takes from around it, builtins included: anywhere in it, annotations too.

    >>> sorted(global_names("def area(r: Length, n=TURNS):\\n    s = pi\\n    return [s * x for x in range(r)]"))
    ['Length', 'TURNS', 'pi', 'range']
    """
    top = symtable.symtable(source, "cut", "exec")
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    inner = list(top.get_children())
    while inner:
        table = inner.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
        inner += table.get_children()
    return names - _bound(top)


def _bound(table: symtable.SymbolTable) -> set[str]:
    return {symbol.get_name() for symbol in table.get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}


def import_lines(module: ModuleSource, names: Collection[str], own: Mapping[str, str]) -> list[str]:
    """The imports that give code cut out of a module these names of it.

    own: name -> module of what is there already, such as what a learner has written before. It is not imported.
    Raises CuttingError when the reference would take the place of the learner's own: by another name, as a module, or
    because two modules use one name for different things.
    """
    wanted: dict[tuple[str, str], list[str]] = {}           # (module, name of it or "from") -> what its import lists
    for name in [*module.imports, *sorted(module.bound_names - module.imports.keys())]:
        if name not in names:
            continue
        origin, there = module.imports.get(name, (f"gearworks.{module.name}", name))
        written = there in own and origin == f"gearworks.{own[there]}"
        if written and name == there:
            continue
        if written or name in own:
            raise CuttingError(f"gearworks.{module.name} knows {origin}.{there} as {name}",
                               "the name of an exercise must mean the same in the whole reference",
                               "give it one name everywhere")
        if f"{origin}.{there}".rstrip(".") in {f"gearworks.{exercised}" for exercised in own.values()}:
            raise CuttingError(f"gearworks.{module.name} imports {there or origin} as a module",
                               "an exercise is a part of it, and the learner's own would not be used",
                               "import the names themselves")
        wanted.setdefault((origin, "from" if there else name), []).append(
            there if there in ("", name) else f"{there} as {name}")
    lines = []
    for (origin, name), parts in wanted.items():
        if name == "from":
            lines.append(f"from {origin} import {', '.join(sorted(parts))}")
        else:
            plain = origin == name or origin.startswith(f"{name}.") or "," in origin
            lines.append(f"import {origin}" if plain else f"import {origin} as {name}")
    return lines


@dataclass(frozen=True)
class Cut:
    """An exercise's cell in three states: as the learner gets it, solved, and solved between the marks of nbgrader."""

    stub: str
    solution: str
    marked: str


def cut(module: ModuleSource, names: Sequence[str], methods: Collection[str] = (), own: Mapping[str, str] | None = None,
        exhibit: tuple[str, ModuleSource] | None = None) -> Cut:
    """Cut definitions out of a module.

    methods: as for `ModuleSource.bodies`. own: as for `import_lines`. exhibit: the name of a mutant and the module as
    the mutant has it; its bodies, broken as they are, take the place of empty ones.
    Raises CuttingError when a name is missing or has nothing to write.
    """
    cells: dict[str, list[str]] = {"stub": [], "solution": [], "marked": []}
    for name in names:
        first, last = span(module.definition(name))
        bodies = module.bodies(name, methods)
        for state, texts in cells.items():
            lines: list[str] = []
            at = first
            for body in bodies:
                lines += module.lines(at, body.first - 1)
                solution = module.lines(body.first, body.last)
                if state == "stub":
                    lines += starting_lines(body.component, body.margin, exhibit and exhibit[1])
                elif state == "solution":
                    lines += solution
                else:
                    mark = f"{BEGIN} {body.component}" + (f" {exhibit[0]}" if exhibit else "")
                    lines += [body.margin + mark, *solution, body.margin + END]
                at = body.last + 1
            texts.append("\n".join(lines + module.lines(at, last)))
    used = global_names("\n".join(cells["solution"])) | (global_names("\n".join(cells["stub"])) if exhibit else set())
    imports = import_lines(module, used, own or {})
    head = ["\n".join(imports)] if imports else []
    return Cut(*("\n\n\n".join(head + texts) for texts in cells.values()))


def starting_lines(component: str, margin: str, exhibit: ModuleSource | None = None) -> list[str]:
    """What stands in the place of a body until the learner writes it: the error that names it, or the exhibit's body.

    component: `module.name` or `module.Class.method`.

    >>> starting_lines("layers.silu", "    ")
    ['    raise NotImplementedError("layers.silu: write this function")']
    """
    if exhibit is None:
        return [f'{margin}raise NotImplementedError("{component}: write this function")']
    name = component.removeprefix(f"{exhibit.name}.")
    owner, _, method = name.partition(".")
    body = exhibit.bodies(owner, [method] if method else [])[0]
    return exhibit.lines(body.first, body.last)


def stub_of(exercise: str, methods: Collection[str] = ()) -> str:
    """The untouched start of an exercise, `module.name` or `module.a+b`, as source that runs by itself.

    >>> print(stub_of("layers.silu").splitlines()[-1])
        raise NotImplementedError("layers.silu: write this function")
    """
    module, _, names = exercise.rpartition(".")
    return cut(module_source(module), names.split("+"), methods).stub
