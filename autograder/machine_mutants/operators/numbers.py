"""Operators on numbers: arithmetic, constants, ends of ranges and of slices, extremes."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, called, changed,
                                                           expression, literal, number,
                                                           replaced, same)

ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
              ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
              ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
              ast.LShift: ast.RShift, ast.RShift: ast.LShift}
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult, ast.LShift,
           ast.RShift)
SEQUENCES = (ast.List, ast.Tuple, ast.JoinedStr, ast.ListComp)
RANGES = {"range", "arange"}
EXTREMES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "amin": "amax",
            "nanmin": "nanmax", "floor": "ceil", "any": "all", "fmin": "fmax"}
EXTREMES |= {other: name for name, other in EXTREMES.items()}


def _arithmetic(node: ast.AST, place: Place) -> Iterator[ast.expr | list[ast.stmt]]:
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        new = changed(node, op=ARITHMETIC[type(node.op)]())
        yield [new] if isinstance(node, ast.AugAssign) else new


def _operand_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        for operand in (node.left, node.right):
            if not isinstance(operand, ast.Constant):
                yield operand
    elif isinstance(node, (ast.List, ast.Set)) and len(node.elts) > 1 and not (
            isinstance(getattr(node, "ctx", None), ast.Store)):
        for at in range(len(node.elts)):
            yield changed(node, elts=replaced(node.elts, at))


def _operands_swapped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if not isinstance(node, ast.BinOp) or same(node.left, node.right):
        return
    joined = isinstance(node.op, ast.Add) and any(
        isinstance(part, SEQUENCES) or isinstance(part, ast.Constant)
        and isinstance(part.value, (str, bytes)) for part in (node.left, node.right))
    if joined or isinstance(node.op, ORDERED):
        yield changed(node, left=node.right, right=node.left)


def _sign_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


def _is_axis(place: Place) -> bool:
    return isinstance(place.parent, ast.keyword) and place.parent.arg == "axis"


def _off_by_one(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    value = number(node)
    inside = isinstance(place.parent, ast.UnaryOp) and number(place.parent) is not None
    if type(value) is int and not inside and not _is_axis(place):
        yield literal(value + 1)
        yield literal(value - 1)
    if called(node) in RANGES:
        for at, end in enumerate(node.args[:2]):
            if number(end) is None and not isinstance(end, ast.Starred):
                for sign in "+-":
                    near = expression(f"X {sign} 1", X=end)
                    yield changed(node, args=replaced(node.args, at, near))
        if len(node.args) == 1:
            yield changed(node, args=[literal(1), *node.args])


def _slice_end(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Slice):
        return
    for field, absent in (("lower", 1), ("upper", -1)):
        end = getattr(node, field)
        if end is None:
            yield changed(node, **{field: literal(absent)})
        else:
            yield changed(node, **{field: None})
            if number(end) is None:
                for sign in "+-":
                    yield changed(node, **{field: expression(f"X {sign} 1", X=end)})
    if node.step is not None:
        yield changed(node, step=None)


def _constant(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant):
        return
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case float():
            yield literal(2 * node.value if node.value else 1.0)
        case None if not isinstance(place.parent, (ast.Compare, ast.Subscript, ast.Tuple)):
            yield ast.Constant(0)


def _extreme(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if called(node) in EXTREMES:
        other = EXTREMES[called(node)]
        function = node.func
        yield changed(node, func=changed(function, attr=other)
                      if isinstance(function, ast.Attribute) else changed(function, id=other))


NUMBERS = (
    Operator("arithmetic", "another operation: `+` and `-`, `*` and `/`, `//` and `%`, `&` and "
             "`|`, `<<` and `>>`, `**` to `*`", _arithmetic),
    Operator("operand-dropped", "of an operation one operand is left, of a list or a set all "
             "elements but one", _operand_dropped),
    Operator("operands-swapped", "`a - b` becomes `b - a`, likewise `/`, `//`, `%`, `**`, `@`, "
             "shifts, and `+` of sequences", _operands_swapped),
    Operator("sign-dropped", "a minus before a value is left out", _sign_dropped),
    Operator("off-by-one", "a whole number, or an end of a range, is one more or one less",
             _off_by_one),
    Operator("slice-end", "an end of a slice is left out, or one more or less; the first or "
             "the last element is missing; the step is left out", _slice_end),
    Operator("constant", "`True` and `False` change places, a float is doubled, `None` becomes "
             "0", _constant),
    Operator("min-max", "`min` and `max`, `floor` and `ceil`, `any` and `all` change places",
             _extreme),
)
