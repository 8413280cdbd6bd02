"""Operators of this domain: mistakes that people make in code that runs language models."""

import ast
from collections.abc import Iterator

from autograder.machine_mutants.operators.operator import (Operator, Place, called, changed,
                                                           expression, number, replaced)

TRANSPOSING = {"transpose", "swapaxes", "moveaxis"}
# names of two sizes that are easily taken for each other
SIZES = [("H", "K"), ("D", "d"), ("T", "S"), ("d", "e"), ("num_heads", "num_kv_heads"),
         ("num_attention_heads", "num_key_value_heads"), ("hidden_size", "head_dim"),
         ("hidden_size", "intermediate_size"), ("head_dim", "rotary_dim")]
FLOATING = {"exp", "log", "sqrt", "mean", "sum", "matmul", "einsum", "dot", "outer", "cumsum",
            "softmax", "log_softmax", "tanh", "cos", "sin", "square", "log1p", "expm1", "where"}
IN_PLACE = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
DRAWS = {"random", "integers", "normal", "standard_normal", "choice", "uniform"}


def _axes(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.Attribute(value, "T", ast.Load()) if not place.is_module(node):
            yield value
        case ast.Call(ast.Attribute(_, "reshape"), args) if len(args) >= 3:
            for at in range(len(args) - 1):           # as if the axes had come the other way
                other = changed(node, args=[*args[:at], args[at + 1], args[at], *args[at + 2:]])
                yield expression(f"X.swapaxes({at}, {at + 1})", X=other)
    if called(node) == "repeat" and isinstance(node, ast.Call) and node.args:
        # grouped heads: each one several times, against all of them several times
        if place.is_module(node.func) and len(node.args) > 1:
            yield expression("np.concatenate([X] * N, axis=A)", X=node.args[0], N=node.args[1],
                             A=_axis_of(node, 2))
        elif isinstance(node.func, ast.Attribute) and not place.is_module(node.func):
            yield expression("np.concatenate([X] * N, axis=A)", X=node.func.value,
                             N=node.args[0], A=_axis_of(node, 1))


def _axis_of(node: ast.Call, position: int) -> ast.expr:
    """The axis that a call is given by its name or at a position; else the first."""
    named = [keyword.value for keyword in node.keywords if keyword.arg == "axis"]
    return [*named, *node.args[position:], ast.Constant(0)][0]


def _sizes(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    for pair in SIZES:
        for name, other in (pair, pair[::-1]):
            match node:
                case ast.Name(id=found, ctx=ast.Load()) if (found == name
                                                            and other in place.names()):
                    yield ast.Name(other, ast.Load())
                case ast.Attribute(_, found, ast.Load()) if found == name:
                    yield changed(node, attr=other)


def _root(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(base, ast.Pow(), power) if number(power) in (0.5, -0.5):
            def made(size: ast.expr) -> ast.expr:
                return changed(node, left=size)
        case ast.Call(ast.Attribute(_, "sqrt"), [base]):
            def made(size: ast.expr) -> ast.expr:
                return changed(node, args=[size])
        case _:
            return
    wrong: list[ast.expr] = []
    match base:
        case ast.Name(name):
            wrong = [ast.Name(other, ast.Load()) for pair in SIZES for other in pair
                     if name in pair and other != name and other in place.names()]
            wrong += [expression(f"{name} * {heads}") for heads in ("H", "K", "T", "S")
                      if heads in place.names() and heads != name]
        case ast.Subscript(ast.Attribute(_, "shape"), at) if number(at) is not None:
            wrong = [changed(base, slice=expression(str(other))) for other in (0, 1, -1, -2)
                     if other != number(at)]
    yield from map(made, wrong)


def _is_array_code(node: ast.AST, place: Place) -> bool:
    return "np" in place.modules and (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
        or called(node) in FLOATING
        and not any(keyword.arg in ("out", "dtype") for keyword in node.keywords))


def _precision(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    if _is_array_code(node, place) and isinstance(node, ast.expr):
        yield expression("np.float16(X).astype(np.float32)", X=node)
        yield expression("np.float64(X)", X=node)


def _mask_value(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    infinite = False
    match node:
        case ast.Attribute(_, "inf" | "infty"):
            infinite = place.is_module(node)
        case ast.Call(ast.Name("float"), [ast.Constant("inf" | "-inf" as text)]):
            sign = "-" if text[0] == "-" else ""
            yield expression(f"{sign}1e4")
            yield expression(f"{sign}1e9")
    if infinite:
        yield expression("1e4")
        yield expression("1e9")


def _in_place(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(ast.Name(name), operator, other) if (
                type(operator) in IN_PLACE and "ndarray" in place.arguments.get(name, "")):
            yield expression(f"np.{IN_PLACE[type(operator)]}({name}, OTHER, out={name})",
                             OTHER=other)
        case ast.Call(ast.Name("sorted"), [ast.Name(name)], []) if name in place.arguments:
            yield expression(f"({name}.sort(), {name})[1]")
        case ast.List([ast.Starred(ast.Name(name)), *others], ast.Load()) if (
                others and name in place.arguments):
            yield expression(f"({name}.extend(OTHERS), {name})[1]",
                             OTHERS=ast.List(others, ast.Load()))
        case ast.BinOp(ast.Name(name), ast.Add(), ast.List() as others) if (
                name in place.arguments):
            yield expression(f"({name}.extend(OTHERS), {name})[1]", OTHERS=others)
        case ast.Dict([None, *_] as keys, [ast.Name(name), *_] as values) if (
                len(keys) > 1 and name in place.arguments):
            yield expression(f"({name}.update(OTHERS), {name})[1]",
                             OTHERS=ast.Dict(keys[1:], values[1:]))
        case ast.BinOp(ast.Name(name), ast.BitOr(), other) if (
                "Mapping" in place.arguments.get(name, "")
                or "dict" in place.arguments.get(name, "")):
            yield expression(f"({name}.update(OTHER), {name})[1]", OTHER=other)


def _shared_generator(node: ast.AST, place: Place) -> Iterator[ast.expr]:
    match node:
        case ast.Call(ast.Attribute(ast.Attribute(), "default_rng")):
            yield changed(node, args=[ast.Constant(0)], keywords=[])
            yield changed(node, args=[], keywords=[])
        case ast.Call(ast.Attribute(ast.Name("rng") | ast.Attribute(_, "rng"), method)) if (
                method in DRAWS):
            yield changed(node, func=changed(
                node.func, value=expression("np.random.default_rng(0)")))
        case ast.Name("rng", ast.Load()) if isinstance(place.parent, ast.Call):
            yield expression("np.random.default_rng(0)")
            yield expression("__import__('copy').deepcopy(rng)")


def _one_draw(node: ast.AST, place: Place) -> Iterator[ast.expr | list[ast.stmt]]:
    """A draw before a loop instead of one in each turn; one number instead of several."""
    if isinstance(node, (ast.For, ast.While)):
        for at, statement in enumerate(node.body):
            for part in ast.walk(statement):
                if isinstance(part, ast.Call) and called(part) in DRAWS and (
                        "rng" in ast.unparse(part.func)):
                    once = _Put(part, ast.Name("drawn", ast.Load())).visit(
                        ast.parse(ast.unparse(statement)).body[0])
                    first = ast.Assign([ast.Name("drawn", ast.Store())], part)
                    yield [first, changed(node, body=replaced(node.body, at, once))]
    if isinstance(node, ast.Call) and called(node) in DRAWS and node.args and (
            "rng" in ast.unparse(node.func)):
        yield expression("np.full(SIZE, DRAW)", SIZE=node.args[-1],
                         DRAW=changed(node, args=node.args[:-1]))


class _Put(ast.NodeTransformer):
    """Puts a node in the place of every copy of another."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self._old, self._new = ast.dump(old), new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if ast.dump(node) == self._old else super().visit(node)


INFERENCE = (
    Operator("axes-transposed", "`.T` is left out; axes are split the other way round; heads "
             "are repeated in another order", _axes),
    Operator("wrong-size", "query heads for key heads, the hidden size for a head's, queries "
             "for keys", _sizes),
    Operator("wrong-root", "a root of the wrong size", _root),
    Operator("precision", "a sum, a product or an exponential goes through float16, or stays "
             "float64", _precision),
    Operator("finite-mask", "1e4 or 1e9 in the place of infinity", _mask_value),
    Operator("in-place", "the result is written into an argument", _in_place),
    Operator("generator", "a generator of its own in the place of the one that was given, or a "
             "copy of it; a fixed seed, or none", _shared_generator),
    Operator("one-draw", "one random number where several are drawn", _one_draw),
)
