"""The statements of a cell: what each binds, uses and changes, and the same under other names.

The overlay takes a definition out of a notebook with the statements that it depends on, and leaves the rest behind. So
it has to know, without running anything, what a statement does to the names around it.
"""

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from autograder.cutting import Function, ModuleSource, global_names
from autograder.intake import Cell

Definition = Function | ast.ClassDef

# What these compute is for the eye, or must not be computed while a module loads.
EFFECT_FUNCTIONS = frozenset({"print", "display", "input", "open", "exec", "eval", "exit", "quit", "breakpoint", "help",
                              "get_ipython", "check"})
EFFECT_METHODS = frozenset({"_exit", "abort", "exit", "system", "popen", "unlink", "rmdir", "rmtree", "mkdir",
                            "makedirs", "chdir", "write", "write_text", "write_bytes", "savefig", "show", "plot",
                            "sleep", "urlopen", "urlretrieve", "load", "from_pretrained", "find_model"})
EFFECT_OWNERS = frozenset({"plt", "matplotlib", "subprocess", "shutil", "requests", "socket", "webbrowser", "widgets"})
CHANGING = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "sort", "reverse", "pop",
                      "remove", "clear", "fill"})


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top level of a cell. text: its source, which stands on lines of its own."""

    node: ast.stmt
    text: str
    cell: Cell
    index: int

    @cached_property
    def binds(self) -> frozenset[str]:
        """The names that it gives a value when it runs."""
        if isinstance(self.node, Definition):
            return frozenset({self.node.name})
        try:
            return ModuleSource("cell", self.text).bound_names
        except SyntaxError:                                  # an `await` outside of any function
            return frozenset()

    @cached_property
    def uses(self) -> frozenset[str]:
        """The names that it takes from around it, inside of functions too, builtins included."""
        shared = {name for part in ast.walk(self.node) if isinstance(part, ast.Global) for name in part.names}
        try:
            return frozenset(global_names(self.text)) | shared
        except SyntaxError:
            return frozenset()

    @cached_property
    def changes(self) -> frozenset[str]:
        """The names whose values it changes in place: `table[i] = …`, `table.append(…)`, in a loop too."""
        return frozenset() if isinstance(self.node, Definition) else frozenset(_changed(self.node))

    @property
    def is_quiet(self) -> bool:
        """Whether it only defines and computes, as far as one can see."""
        if isinstance(self.node, Definition | ast.Import | ast.ImportFrom):
            return True
        return not any(isinstance(part, ast.Await) or isinstance(part, ast.Call) and _has_effect(part.func)
                       for part in ast.walk(self.node))


@cache
def statements_of(cell: Cell) -> tuple[Statement, ...]:
    """The statements of a cell in their order, each import of a name by itself. None, when the cell is no Python."""
    lines = cell.python.split("\n")
    found: list[Statement] = []
    body = cell.tree.body
    for at, node in enumerate(body):
        first, last = _span(node)
        shared = any(_span(other)[0] <= last and _span(other)[1] >= first for other in body[max(0, at - 1):at + 2]
                     if other is not node)
        for part in _single_imports(node):
            is_whole = part is node and not shared and not _calls_ipython(node)
            text = "\n".join(lines[first - 1:last]) if is_whole else ast.unparse(_without_magics(part))
            found.append(Statement(part, text, cell, len(found)))
    return tuple(found)


def renamed(statement: Statement, names: Mapping[str, str]) -> str:
    """Its text with names of the module's scope replaced; local names of functions that are spelled the same stay."""
    if not names or not (statement.binds | statement.uses) & names.keys():
        return statement.text
    node = ast.parse(statement.text).body[0]
    return ast.unparse(_Renaming(names).visit(node))


def _span(node: ast.stmt) -> tuple[int, int]:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]), node.end_lineno


def _single_imports(node: ast.stmt) -> list[ast.stmt]:
    if not isinstance(node, ast.Import | ast.ImportFrom) or len(node.names) == 1:
        return [node]
    single = []
    for alias in node.names:
        part = copy.copy(node)
        part.names = [alias]
        single.append(part)
    return single


def _calls_ipython(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "get_ipython" for part in ast.walk(node))


def _without_magics(node: ast.stmt) -> ast.stmt:
    class Removal(ast.NodeTransformer):
        def visit_Expr(self, expression: ast.Expr) -> ast.stmt:
            return ast.copy_location(ast.Pass(), expression) if _calls_ipython(expression) else expression

    return Removal().visit(copy.deepcopy(node)) if isinstance(node, Definition) else node


def _has_effect(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in EFFECT_METHODS or _owner(called) in EFFECT_OWNERS
    return isinstance(called, ast.Name) and called.id in EFFECT_FUNCTIONS


def _owner(node: ast.expr) -> str:
    """The name at the root of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changed(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store | ast.Del):
            yield _owner(part)
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and \
                isinstance(part.value.func, ast.Attribute) and part.value.func.attr in CHANGING:
            yield _owner(part.value.func)


class _Renaming(ast.NodeTransformer):
    """Renames what a statement takes from, and gives to, the scope of its module."""

    def __init__(self, names: Mapping[str, str]):
        self._names = names
        self._hidden: list[frozenset[str]] = []              # names that are local to the scopes around, innermost last

    def _new(self, name: str) -> str:
        return name if any(name in scope for scope in self._hidden) else self._names.get(name, name)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._new(node.id)
        return node

    def visit_Global(self, node: ast.Global) -> ast.Global:
        node.names = [self._names.get(name, name) for name in node.names]
        return node

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.stmt:
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            new = self._new(bound)
            if new != bound and (alias.asname or "." not in alias.name):
                alias.asname = new
        return node

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.name:
            node.name = self._new(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name = self._new(node.name)
        outside = [*node.decorator_list, *node.bases, *node.keywords]
        for part in outside:
            self.visit(part)
        own = frozenset().union(*map(_stored, node.body)) if node.body else frozenset()
        for part in node.body:                               # methods do not see the names of their class
            if isinstance(part, Function):
                self._visit_function(part, part.name)
            else:
                self._within(own, [part])
        return node

    def visit_FunctionDef(self, node: Function) -> Function:
        self._visit_function(node, self._new(node.name))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def _visit_function(self, node: Function, name: str) -> None:
        node.name = name
        for part in [*node.decorator_list, *_outside_of(node.args), *filter(None, [node.returns])]:
            self.visit(part)
        self._within(_locals(node), node.body)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        for part in _outside_of(node.args):
            self.visit(part)
        self._within(_parameters(node.args), [node.body])
        return node

    def _visit_comprehension(self, node: ast.expr) -> ast.expr:
        self.visit(node.generators[0].iter)                  # of the scope around; a second visit changes nothing
        targets = frozenset().union(*(_stored(loop.target) for loop in node.generators))
        self._within(targets, [part for part in ast.iter_child_nodes(node)])
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _within(self, names: frozenset[str], parts: list[ast.AST]) -> None:
        self._hidden.append(names)
        for part in parts:
            self.visit(part)
        self._hidden.pop()


def _parameters(arguments: ast.arguments) -> frozenset[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return frozenset(argument.arg for argument in every if argument is not None)


def _outside_of(arguments: ast.arguments) -> list[ast.expr]:
    """Defaults and annotations: they belong to the scope around the function."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [argument.annotation for argument in every if argument is not None]
    return [part for part in [*arguments.defaults, *arguments.kw_defaults, *annotations] if part is not None]


def _locals(node: Function) -> frozenset[str]:
    shared = {name for part in _same_scope(node.body) if isinstance(part, ast.Global) for name in part.names}
    return (_parameters(node.args) | frozenset().union(*map(_stored, node.body))) - shared


def _stored(node: ast.AST) -> frozenset[str]:
    """The names that a node binds in its own scope."""
    names: set[str] = set()
    for part in _same_scope([node]):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
            names.add(part.id)
        elif isinstance(part, Definition):
            names.add(part.name)
        elif isinstance(part, ast.alias):
            names.add(part.asname or part.name.partition(".")[0])
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
            names.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            names.add(part.rest)
    return frozenset(names)


def _same_scope(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and all below them, without what lies in a scope of its own."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Definition | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            waiting += ast.iter_child_nodes(node)
