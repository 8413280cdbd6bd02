"""Operators on conditions: comparisons, logic, branches, and tests for None."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, changed, replaced)

BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE,
          ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
          ast.In: ast.NotIn, ast.NotIn: ast.In}


def is_validation(node: ast.AST) -> bool:
    """Whether a statement only refuses: an `if` without `else` that ends in `raise`."""
    return (isinstance(node, ast.If) and not node.orelse
            and isinstance(node.body[-1], ast.Raise))


def _compared(table: dict[type, type]):
    def changes(node: ast.AST, place: Place) -> Iterator[ast.expr]:
        if isinstance(node, ast.Compare):
            for at, operator in enumerate(node.ops):
                if type(operator) in table:
                    yield changed(node, ops=replaced(node.ops, at, table[type(operator)]()))
    return changes


def _connective(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _condition_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        for at in range(len(node.values)):
            left = replaced(node.values, at)
            yield changed(node, values=left) if len(left) > 1 else left[0]


def _not_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        yield node.operand


def _none_by_truth(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
            yield ast.UnaryOp(ast.Not(), left)
        case ast.Compare(left, [ast.IsNot()], [ast.Constant(None)]):
            yield left


def _branch(node: ast.AST, place: Place) -> Iterator[ast.expr | list[ast.stmt]]:
    match node:
        case ast.If() if not is_validation(node):
            yield node.body                                     # whatever the condition
            yield node.orelse
            if node.orelse:
                yield [changed(node, orelse=[])]
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Match():
            for at in range(len(node.cases)):
                if len(node.cases) > 1:
                    yield [changed(node, cases=replaced(node.cases, at))]


def _filter_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for at, loop in enumerate(node.generators):
            for condition in range(len(loop.ifs)):
                left = changed(loop, ifs=replaced(loop.ifs, condition))
                yield changed(node, generators=replaced(node.generators, at, left))


def _validation_dropped(node: ast.AST, place: Place) -> Iterator[list[ast.stmt]]:
    if is_validation(node) or isinstance(node, (ast.Assert, ast.Raise)) and not (
            is_validation(place.parent)):
        yield []


CONDITIONS = (
    Operator("boundary", "`<` and `<=`, `>` and `>=` change places", _compared(BOUNDARY)),
    Operator("comparison", "a comparison is turned round: `<` to `>`, `==` to `!=`, `in` to "
             "`not in`", _compared(TURNED)),
    Operator("and-or", "`and` and `or` change places", _connective),
    Operator("condition-dropped", "one of the conditions joined by `and` or `or` is left out",
             _condition_dropped),
    Operator("not-dropped", "a `not`, or a `~`, is left out", _not_dropped),
    Operator("none-by-truth", "`x is None` becomes `not x`, and `x is not None` becomes `x`",
             _none_by_truth),
    Operator("branch", "a branch is always taken, or never; an `else` is left out", _branch),
    Operator("filter-dropped", "the `if` of a comprehension is left out", _filter_dropped),
    Operator("validation-dropped", "an `if` that only raises, a `raise` or an `assert` is left "
             "out", _validation_dropped),
)
