"""Operators on what every array has: its axes and its dtype."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, changed, literal,
                                                           number)

DTYPES = {"float32": ("float64", "float16"), "float64": ("float32",), "float16": ("float32",),
          "int64": ("int32",), "int32": ("int64",), "int16": ("uint16",), "int8": ("uint8",),
          "uint8": ("int8",), "uint16": ("int16",), "uint32": ("int32",), "uint64": ("int64",)}


def _axis(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(place.parent, ast.keyword) and place.parent.arg == "axis":
        value = number(node)
        if value is not None:
            yield literal({0: -1, -1: 0, 1: 0}.get(value, value - 1))
        elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
            for axis in node.elts:
                yield axis


def _dtype(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if isinstance(node, ast.Attribute) and place.is_module(node):
        for other in DTYPES.get(node.attr, ()):
            yield changed(node, attr=other)


ARRAYS = (
    Operator("axis", "another axis: the first instead of the last, and the other way round",
             _axis),
    Operator("dtype", "another dtype: float32 and float64, float16, int32 and int64, signed "
             "and unsigned", _dtype),
)
