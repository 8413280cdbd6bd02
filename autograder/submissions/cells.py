"""The cells of a learner's notebook and their statements: what each binds, uses and changes.

A definition is taken out of a notebook with the statements that it depends on, and the rest is
left behind. So it has to be known, without running anything, what a statement does to the names
around it.
"""

import ast
import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autograder.chapters.chapter import python_of
from autograder.reference.source import Definition, Function, ModuleSource, global_names, span

# Magics whose cell is Python all the same. The others hand it to another language.
PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")

# What these compute is for the eye, or must not be computed while a module loads.
EFFECT_FUNCTIONS = frozenset({"print", "display", "input", "open", "exec", "eval", "exit",
                              "quit", "breakpoint", "help", "get_ipython", "check"})
EFFECT_METHODS = frozenset({"_exit", "abort", "exit", "system", "popen", "unlink", "rmdir",
                            "rmtree", "mkdir", "makedirs", "chdir", "write", "write_text",
                            "write_bytes", "savefig", "show", "plot", "sleep", "urlopen",
                            "urlretrieve", "load", "from_pretrained", "find_model"})
EFFECT_OWNERS = frozenset({"plt", "matplotlib", "subprocess", "shutil", "requests", "socket",
                           "webbrowser", "widgets"})
CHANGING = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "sort",
                      "reverse", "pop", "remove", "clear", "fill"})


@dataclass(frozen=True)
class Cell:
    """One cell of a notebook.

    number: its place, from 1, text cells included. ids: its grade id, then cell ids.
    """

    number: int
    kind: str
    source: str
    ids: tuple[str, ...] = ()

    @cached_property
    def python(self) -> str:
        """Its source with magics as the calls that IPython makes of them; "" if no Python."""
        source = self.source
        if source.lstrip().startswith("%%"):
            if not source.lstrip().startswith(PYTHON_CELLS):
                return ""
            source = source.replace("%%", "# %%", 1)
        if problem_of(source) is None:
            return source
        try:
            return python_of(source)
        except Exception:            # IPython's reader of magics meets what no one has foreseen
            return source

    @cached_property
    def error(self) -> str:
        """Why it is no Python, as `line 3: invalid syntax`; "" when it is."""
        return problem_of(self.python) or ""

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree; an empty one when it is no Python."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")              # "\d" in a learner's string is no news
            return ast.parse("" if self.error else self.python)

    @cached_property
    def statements(self) -> "tuple[Statement, ...]":
        """Its statements in their order, each import of a name by itself; none if no Python."""
        lines = self.python.split("\n")
        found: list[Statement] = []
        body = self.tree.body
        for at, node in enumerate(body):
            first, last = span(node)
            shared = any(span(other)[0] <= last and span(other)[1] >= first
                         for other in body[max(0, at - 1):at + 2] if other is not node)
            for part in _single_imports(node):
                is_whole = part is node and not shared and not _calls_ipython(node)
                text = ("\n".join(lines[first - 1:last]) if is_whole
                        else ast.unparse(_without_magics(part)))
                found.append(Statement(part, text, self, len(found)))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top level of a cell. text: its source, on lines of its own."""

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
        except SyntaxError:                                 # an `await` outside of any function
            return frozenset()

    @cached_property
    def uses(self) -> frozenset[str]:
        """The names that it takes from around it, inside of functions too, and builtins."""
        shared = {name for part in ast.walk(self.node) if isinstance(part, ast.Global)
                  for name in part.names}
        try:
            return frozenset(global_names(self.text)) | shared
        except SyntaxError:
            return frozenset()

    @cached_property
    def changes(self) -> frozenset[str]:
        """The names whose values it changes in place: `table[i] = …`, `table.append(…)`."""
        if isinstance(self.node, Definition):
            return frozenset()
        return frozenset(_changed(self.node))

    @property
    def is_quiet(self) -> bool:
        """Whether it only defines and computes, as far as one can see."""
        if isinstance(self.node, Definition | ast.Import | ast.ImportFrom):
            return True
        return not any(isinstance(part, ast.Await)
                       or isinstance(part, ast.Call) and _has_effect(part.func)
                       for part in ast.walk(self.node))


def renamed(statement: Statement, names: Mapping[str, str]) -> str:
    """Its text with names of the module's scope replaced.

    Variables of functions that are spelled so are replaced with them. Parameters and attributes
    stay: others call them by their names.
    """
    if not names or not (statement.binds | statement.uses) & names.keys():
        return statement.text
    node = ast.parse(statement.text).body[0]
    _Renaming(names).visit(node)
    return ast.unparse(node)


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
    return any(isinstance(part, ast.Name) and part.id == "get_ipython"
               for part in ast.walk(node))


def _without_magics(node: ast.stmt) -> ast.stmt:
    class Removal(ast.NodeTransformer):
        def visit_Expr(self, expression: ast.Expr) -> ast.stmt:
            if _calls_ipython(expression):
                return ast.copy_location(ast.Pass(), expression)
            return expression

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
        if isinstance(part, ast.Subscript | ast.Attribute):
            if isinstance(part.ctx, ast.Store | ast.Del):
                yield _owner(part)
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            called = part.value.func
            if isinstance(called, ast.Attribute) and called.attr in CHANGING:
                yield _owner(called)


class _Renaming(ast.NodeVisitor):
    """Renames in place, but for what a parameter hides in its function, a class in its body."""

    def __init__(self, names: Mapping[str, str]):
        self._names = names

    def _without(self, hidden: Collection[str]) -> "_Renaming":
        return _Renaming({old: new for old, new in self._names.items() if old not in hidden})

    def visit(self, node: ast.AST) -> None:
        # Of names, definitions, handlers and patterns; `visit_alias` looks at those of imports.
        for field in () if isinstance(node, ast.alias) else ("id", "name", "rest"):
            if isinstance(name := getattr(node, field, None), str):
                setattr(node, field, self._names.get(name, name))
        super().visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        node.names = [self._names.get(name, name) for name in node.names]

    visit_Nonlocal = visit_Global

    def visit_alias(self, node: ast.alias) -> None:
        bound = node.asname or node.name
        if bound in self._names:            # `import a.b` binds a, and has no other name for it
            node.asname = self._names[bound]

    def visit_FunctionDef(self, node: Function | ast.Lambda) -> None:
        self._visit_head(node)
        self._visit_body(node)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        inside = self._without(attributes(node))
        for part in node.body:
            if isinstance(part, Function):      # whose body does not see the names of its class
                inside._visit_head(part)
                self._visit_body(part)
            else:
                inside.visit(part)

    def _visit_head(self, node: Function | ast.Lambda) -> None:
        """Decorators, defaults and annotations: they belong to the scope around it."""
        for part in [*getattr(node, "decorator_list", []), node.args,
                     getattr(node, "returns", None)]:
            if part is not None:
                self.visit(part)

    def _visit_body(self, node: Function | ast.Lambda) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
                 arguments.vararg, arguments.kwarg]
        dotted = {alias.name.partition(".")[0] for part in ast.walk(node)
                  if isinstance(part, ast.Import) for alias in part.names
                  if alias.asname is None and "." in alias.name}
        parameters = {argument.arg for argument in every if argument is not None}
        inside = self._without(parameters | dotted)
        for part in node.body if isinstance(node.body, list) else [node.body]:
            inside.visit(part)


def attributes(node: ast.ClassDef) -> set[str]:
    """The names that the body of a class binds, and those of comprehensions in it."""
    names = set()
    for statement in node.body:
        for part in [statement] if isinstance(statement, Definition) else ast.walk(statement):
            if isinstance(part, Definition):
                names.add(part.name)
            elif isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                names.add(part.id)
            elif isinstance(part, ast.alias):
                names.add(part.asname or part.name.partition(".")[0])
    return names


def problem_of(source: str) -> str | None:
    """None when IPython would run a source as it stands, else what is wrong with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                    dont_inherit=True)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
        except (ValueError, RecursionError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"
    return None
