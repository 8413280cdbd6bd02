"""What an operator is: for a node of the syntax tree, the nodes that may take its place."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

# In the place of an expression, another one; in that of a statement, none or several.
Replacement = ast.expr | list[ast.stmt] | ast.excepthandler
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True)
class Place:
    """Where a node stands.

    ancestors: from the function or method that a learner writes down to the node's parent.
    modules: the names that mean modules there, such as "np".
    """

    ancestors: tuple[ast.AST, ...]
    modules: frozenset[str]

    @property
    def parent(self) -> ast.AST:
        return self.ancestors[-1]

    @property
    def function(self) -> ast.FunctionDef:
        """The definition that the learner writes."""
        return self.ancestors[0]

    @cached_property
    def arguments(self) -> dict[str, str]:
        """The arguments of that definition: name -> annotation, "" where there is none."""
        given = self.function.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return {argument.arg: ast.unparse(argument.annotation) if argument.annotation else ""
                for argument in named}

    def binds(self, name: str) -> int:
        """How often the definition binds a name, as an argument too."""
        return (name in self.arguments) + sum(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
            for node in ast.walk(self.function))

    def names(self) -> set[str]:
        """All names that the definition binds."""
        return {*self.arguments, *(node.id for node in ast.walk(self.function)
                                   if isinstance(node, ast.Name)
                                   and isinstance(node.ctx, ast.Store))}

    def is_module(self, node: ast.AST) -> bool:
        """Whether an expression names a module, or something that hangs on one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.modules


@dataclass(frozen=True)
class Operator:
    """One kind of change. says: what it does, for the page that publishes the list."""

    name: str
    says: str
    changes: Callable[[ast.AST, Place], Iterator[Replacement]]


def changed(node: _Node, **fields: object) -> _Node:
    """A copy of a node with other fields."""
    new = type(node)(**{name: value for name, value in ast.iter_fields(node)} | fields)
    return ast.copy_location(new, node)


def replaced(items: Sequence, at: int, *new: object) -> list:
    """A copy of a list, with other items in the place of one."""
    return [*items[:at], *new, *items[at + 1:]]


def swapped(items: Sequence, at: int) -> list:
    """A copy of a list in which an item has changed places with the next one."""
    return [*items[:at], items[at + 1], items[at], *items[at + 2:]]


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two nodes are the same code."""
    return ast.dump(a) == ast.dump(b)


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """An expression from a template: a name of it that is a keyword here stands for that node.

    >>> ast.unparse(expression("f(X, 1)", X=ast.Name("y")))
    'f(y, 1)'
    """
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return parts.get(node.id, node)

    return Fill().visit(ast.parse(text, mode="eval").body)


def number(node: ast.AST) -> int | float | None:
    """The value of a number's literal, a negative one too; None for all else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    return None


def literal(value: int | float) -> ast.expr:
    """The literal of a number."""
    return ast.parse(repr(value), mode="eval").body


def called(node: ast.AST) -> str:
    """The last name of what a call calls: "sum" of `np.sum(x)` and of `x.sum()`; else ""."""
    if not isinstance(node, ast.Call):
        return ""
    return {ast.Attribute: lambda f: f.attr, ast.Name: lambda f: f.id}.get(
        type(node.func), lambda f: "")(node.func)
