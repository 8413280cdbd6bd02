"""Operators on statements: one is left out, a loop or a function ends too early."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import Operator, Place, changed, replaced


def _is_bound_elsewhere(targets: list[ast.expr], place: Place) -> bool:
    """Whether code would still run without an assignment to these targets."""
    return all(isinstance(target, (ast.Subscript, ast.Attribute))
               or isinstance(target, ast.Name) and place.binds(target.id) > 1
               for target in targets)


def _statement_dropped(node: ast.AST, place: Place) -> Iterator[list[ast.stmt]]:
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.For() | ast.While():
            yield []
        case ast.Assign(targets) if _is_bound_elsewhere(targets, place):
            yield []
        case ast.AnnAssign(target, value=ast.expr()) if _is_bound_elsewhere([target], place):
            yield []
        case ast.Return(ast.expr()) if node is not place.function.body[-1]:
            yield []
        case ast.With():
            yield node.body


def _jump(node: ast.AST, place: Place) -> Iterator[list[ast.stmt]]:
    match node:
        case ast.Break():
            yield []
            yield [ast.Continue()]
        case ast.Continue():
            yield []
            yield [ast.Break()]
        case ast.For() | ast.While() if not isinstance(node.body[-1], (ast.Break, ast.Return)):
            yield [changed(node, body=[*node.body, ast.Break()])]
        case ast.Yield():
            pass


def _handler(node: ast.AST, place: Place) -> Iterator[list[ast.stmt] | ast.excepthandler]:
    match node:
        case ast.Try(handlers=handlers) if len(handlers) == 1 and not node.finalbody:
            yield [*node.body, *node.orelse]
        case ast.Try(handlers=handlers):
            for at in range(len(handlers)):
                yield [changed(node, handlers=replaced(handlers, at))]
        case ast.ExceptHandler(ast.Tuple(kinds)):
            for at in range(len(kinds)):
                yield changed(node, type=ast.Tuple(replaced(kinds, at), ast.Load()))


STATEMENTS = (
    Operator("statement-dropped", "a statement is left out: a call, a loop, an early `return`, "
             "an assignment to what has a value already", _statement_dropped),
    Operator("jump", "`break` and `continue` change places or are left out; a loop ends after "
             "its first turn", _jump),
    Operator("handler", "an exception is not caught", _handler),
)
