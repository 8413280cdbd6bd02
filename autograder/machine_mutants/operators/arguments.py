"""Operators on calls: the call, a copy, a keyword or a default is left out, arguments swap."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, called, changed,
                                                           replaced, same, swapped)

COPIES = {"copy", "deepcopy", "list", "tuple", "dict", "set", "frozenset", "array", "asarray",
          "ascontiguousarray", "bytes", "bytearray"}
CASTS = {"astype", "int", "float", "str", "bool", "float16", "float32", "float64", "int8",
         "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "view", "item"}
# the last of their arguments, from the second on, may be missing
WITH_DEFAULT = {"get", "pop", "getattr", "next", "int", "round", "split", "rsplit", "enumerate",
                "sum", "strip", "lstrip", "rstrip", "range", "replace", "find", "startswith",
                "endswith", "sorted", "slice"}
DICT_METHODS = {"get", "pop", "setdefault"}
SYMMETRIC = {"min", "max", "minimum", "maximum", "gcd", "lcm", "hypot", "array_equal"}


def innermost(node: ast.AST, place: Place) -> ast.expr | None:
    """What a call works on: the value before a method's dot, or the first argument."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and not place.is_module(node.func.value):
        return node.func.value
    first = node.args[0] if node.args else None
    return None if isinstance(first, ast.Starred) else first


def _call_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    inner = innermost(node, place)
    if inner is not None and called(node) not in COPIES | CASTS and not (
            isinstance(place.parent, ast.Expr)):                 # statement-dropped does these
        yield inner


def _copy_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    inner = innermost(node, place)
    if inner is not None and called(node) in COPIES:
        yield inner
    match node:
        case ast.Subscript(value, ast.Slice(None, None, None), ast.Load()):
            yield value


def _cast_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    inner = innermost(node, place)
    if inner is not None and called(node) in CASTS:
        yield inner


def _keyword_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        for at, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield changed(node, keywords=replaced(node.keywords, at))


def _default_dropped(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if called(node) in WITH_DEFAULT and len(node.args) > (
            isinstance(node.func, ast.Name) or called(node) in DICT_METHODS):
        yield changed(node, args=node.args[:-1])


def _arguments_swapped(node: ast.AST, place: Place) -> Iterator[ast.expr | list[ast.stmt]]:
    match node:
        case ast.Call(args=items) if called(node) not in SYMMETRIC:
            pass
        case ast.Return(ast.Tuple(items)):
            pass
        case _:
            return
    for at in range(len(items) - 1):
        pair = items[at:at + 2]
        if same(*pair) or any(isinstance(part, ast.Starred) for part in pair):
            continue
        if isinstance(node, ast.Call):
            yield changed(node, args=swapped(items, at))
        else:
            yield [changed(node, value=changed(node.value, elts=swapped(items, at)))]


ARGUMENTS = (
    Operator("call-dropped", "a call is left out: `f(x)` becomes `x`, and `x.f()` too",
             _call_dropped),
    Operator("copy-dropped", "a copy is left out: `x.copy()`, `list(x)`, `x[:]` become `x`",
             _copy_dropped),
    Operator("cast-dropped", "a conversion is left out: `x.astype(…)`, `int(x)` become `x`",
             _cast_dropped),
    Operator("keyword-dropped", "an argument that is given by name is left out",
             _keyword_dropped),
    Operator("default-dropped", "the last argument of `get`, `split`, `range` and others is "
             "left out", _default_dropped),
    Operator("arguments-swapped", "two neighbouring arguments, or results, change places",
             _arguments_swapped),
)
