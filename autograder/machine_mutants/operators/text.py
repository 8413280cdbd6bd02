"""Operators on strings, bytes and containers: their constants and their methods."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, called, changed,
                                                           expression)

STRING_METHODS = {
    "strip": ("lstrip", "rstrip"), "lstrip": ("strip",), "rstrip": ("strip",),
    "lower": ("upper",), "upper": ("lower",), "casefold": ("lower",),
    "startswith": ("endswith",), "endswith": ("startswith",), "find": ("rfind",),
    "rfind": ("find",), "index": ("rindex",), "split": ("rsplit",), "rsplit": ("split",),
    "partition": ("rpartition",), "rpartition": ("partition",),
    "removeprefix": ("removesuffix", "lstrip"), "removesuffix": ("removeprefix", "rstrip"),
    "isdigit": ("isalnum",), "isalpha": ("isalnum",), "isalnum": ("isalpha",),
    "isspace": ("isalpha",), "match": ("search", "fullmatch"), "fullmatch": ("match",),
    "search": ("match",), "ljust": ("rjust",), "rjust": ("ljust",),
}
CONTAINER_METHODS = {
    "append": ("extend",), "extend": ("append",), "appendleft": ("append",),
    "popleft": ("pop",), "add": ("discard",), "union": ("intersection",),
    "intersection": ("union",), "issubset": ("issuperset",), "keys": ("values",),
    "values": ("keys",),
}
WORDS = {"little": "big", "big": "little", "left": "right", "right": "left",
         "utf-8": "latin-1", "replace": "ignore", "ignore": "replace", "strict": "replace",
         "constant": "edge", "stable": "quicksort"}


def _method(table: dict[str, tuple[str, ...]]):
    def changes(node: ast.AST, place: Place) -> Iterator[ast.expr]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for other in table.get(called(node), ()):
                yield changed(node, func=changed(node.func, attr=other))
    return changes


def _end_of_container(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.Call(ast.Attribute(_, "pop"), [], []):
            yield changed(node, args=[ast.Constant(0)])
        case ast.Call(ast.Attribute(_, "pop"), [ast.Constant(0)], []):
            yield changed(node, args=[])
        case ast.Call(ast.Attribute(owner, "append"), [item], []):
            yield expression("OWNER.insert(0, ITEM)", OWNER=owner, ITEM=item)
    yield from _method(CONTAINER_METHODS)(node, place)


def _string(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
        return
    value = node.value
    if value in WORDS:
        yield ast.Constant(WORDS[value])
        return
    if isinstance(value, str) and value[:1] == "<" and len(value) <= 6 and value[1:].isalnum():
        yield ast.Constant(">" + value[1:])                 # the byte order of a number
    if value:
        yield ast.Constant(value[:0])
        if len(value) > 1:
            yield ast.Constant(value[:-1])
    else:
        yield ast.Constant("x" if isinstance(value, str) else b"x")


TEXT = (
    Operator("string", "a string is empty, or lacks its last character; an encoding, a byte "
             "order or a side is the other one", _string),
    Operator("string-method", "a near relative: `strip` and `lstrip`, `find` and `rfind`, "
             "`match` and `search`", _method(STRING_METHODS)),
    Operator("container-method", "a near relative: `append` and `extend`, the first instead of "
             "the last, keys and values", _end_of_container),
)
