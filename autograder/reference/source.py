"""The reference as text: its modules, their definitions, and the bodies that a learner writes.

Chapters are cut out of it, learners' definitions are put into it, and mutants are edits of it.
"""

import ast
import importlib.util
import symtable
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from autograder.reference.names import home_of
from gearworks.errors import GearworksError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


class CuttingError(GearworksError, ValueError):
    """The reference has no such definition, or one that cannot be cut."""


def span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, decorators too: first and last, from 1, both included."""
    decorators = getattr(node, "decorator_list", [])
    return min(part.lineno for part in [node, *decorators]), node.end_lineno


@dataclass(frozen=True)
class Body:
    """What is to be written of a function or method, below its docstring.

    component: `module.name` or `module.Class.method`. first, last: its lines. margin: the
    spaces before its statements.
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
    """A module as text. name: its short name, such as "tokenizer" or "gguf"."""

    name: str
    text: str

    @property
    def home(self) -> str:
        """Where it is imported from, such as "gearworks.formats.gguf"."""
        return home_of(self.name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The functions and classes at its top level."""
        return {node.name: node for node in self.tree.body if isinstance(node, Definition)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """What its imports bind: name -> (module, name there), or (module, "") for a module.

        Conditional ones are left out. `import a.b` and `import a.c` bind one name, `a`, and
        need both: ("a.b, a.c", "").
        """
        bound: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    before = f"{bound[name][0]}, " if name in bound and not alias.asname else ""
                    bound[name] = (before + alias.name, "")
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                bound |= {alias.asname or alias.name: (node.module, alias.name)
                          for alias in node.names}
        return bound

    @cached_property
    def bound_names(self) -> frozenset[str]:
        """Every name that it binds at its top level."""
        return frozenset(_bound(symtable.symtable(self.text, self.name, "exec")))

    @cached_property
    def delays_annotations(self) -> bool:
        """Whether it says `from __future__ import annotations`."""
        return any(isinstance(node, ast.ImportFrom) and node.module == "__future__"
                   for node in self.tree.body)

    def lines(self, first: int, last: int) -> list[str]:
        """The lines from `first` to `last`, both included, counted from 1."""
        return self.text.splitlines()[first - 1:last]

    def definition(self, name: str) -> Definition:
        """A definition at the top level, by its name. Raises CuttingError without one."""
        if name not in self.definitions:
            raise CuttingError(f"there is no {self.name}.{name}",
                               "the module defines no such function or class",
                               "is the name right?")
        return self.definitions[name]

    def bodies(self, name: str, methods: Collection[str] = ()) -> list[Body]:
        """What is to be written: a function's body, or those of a class's methods in order.

        methods: empty means all that do not begin with a single underscore.
        Raises CuttingError for a method that does not exist, a body on the line of its `def`, a
        class without methods.
        """
        node = self.definition(name)
        if isinstance(node, Function):
            if methods:
                raise CuttingError(f"{self.name}.{name} has no methods", "it is a function",
                                   "leave `methods` out")
            return [self._body(node, f"{self.name}.{name}")]
        found = [method for method in node.body if isinstance(method, Function)]
        unknown = {*methods} - {method.name for method in found}
        if unknown:
            raise CuttingError(f"{self.name}.{name} has no method {min(unknown)}",
                               "the exercise is to write it",
                               "its methods are " + ", ".join(method.name for method in found))
        wanted = [method for method in found
                  if (method.name in methods if methods
                      else method.name.startswith("__") or method.name[0] != "_")]
        if not wanted:
            raise CuttingError(f"there is nothing to write in {self.name}.{name}",
                               "it has no public method",
                               "exercise a function, or name the methods")
        return [self._body(method, f"{self.name}.{name}.{method.name}") for method in wanted]

    def _body(self, node: Function, component: str) -> Body:
        documented = ast.get_docstring(node) is not None
        statements = node.body[documented:]
        if not statements:
            raise CuttingError(f"{component} has no body",
                               "there is nothing to write below its docstring",
                               "give the definition instead of exercising it")
        above = node.body[0].end_lineno if documented else max([
            node.lineno,
            *(part.end_lineno for part in ast.walk(node.args) if hasattr(part, "end_lineno")),
            node.returns.end_lineno if node.returns else 0])
        lines = self.text.splitlines()
        first = statements[0].lineno
        if first == above:
            raise CuttingError(f"{component} cannot be cut",
                               "its body is on the line of its `def`", "begin a new line")
        # Comments and blank lines above the first statement belong to the solution.
        while first - 1 > above and lines[first - 2].strip()[:1] in ("", "#"):
            first -= 1
        return Body(component, first, node.end_lineno, " " * statements[0].col_offset)


def module_source(module: str) -> ModuleSource:
    """A module of the `gearworks` that is first on the path.

    Raises CuttingError when there is none.

    >>> "softmax" in module_source("layers").definitions
    True
    """
    try:
        spec = importlib.util.find_spec(home_of(module))
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise CuttingError(f"there is no module {home_of(module)}",
                           "a component is named after it: `module.name`", "is the name right?")
    path = Path(spec.origin)
    return _source_at(module, path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)                     # so that each is parsed once
def _source_at(module: str, path: Path, changed: int) -> ModuleSource:
    return ModuleSource(module, path.read_text(encoding="utf-8"))


def global_names(source: str) -> set[str]:
    """The names that code takes from around it, anywhere in it: builtins and annotations too.

    >>> code = "def area(r: Length, n=TURNS):\\n s = pi\\n return [s * x for x in range(r)]"
    >>> sorted(global_names(code))
    ['Length', 'TURNS', 'pi', 'range']
    """
    top = symtable.symtable(source, "cut", "exec")
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    inner = list(top.get_children())
    while inner:
        table = inner.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols()
                  if symbol.is_referenced() and symbol.is_global()}
        inner += table.get_children()
    return names - _bound(top)


def _bound(table: symtable.SymbolTable) -> set[str]:
    return {symbol.get_name() for symbol in table.get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}
