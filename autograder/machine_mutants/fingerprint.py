"""What a result was made from: a hash of mutants, of checks, and of what they are about.

Only code counts: comments, docstrings, points, seeds, the order of definitions and the words
that a check says change nothing.
"""

import ast
import hashlib
import importlib
from collections.abc import Iterable
from functools import cache

from autograder.checking import Check, checks_of
from autograder.machine_mutants.mutants import MachineMutant, canonical
from autograder.reference.names import module_of, names_of
from autograder.reference.source import ModuleSource, module_source

LENGTH = 16
INPUTS = ("autograder.checks", "autograder.generators")      # where inputs come from
# What a check says, and is worth, and the seeds of more inputs than it has by chance.
WORDS = {"hint", "of", "points", "when", "axes", "always"}


def fingerprint(exercise: str, mutants: Iterable[MachineMutant]) -> str:
    """The hash that an exercise's results belong to."""
    digest = hashlib.sha256()
    for mutant in mutants:
        digest.update(mutant.key.encode())
    subject = module_source(module_of(exercise))
    code = _closure(subject, {*names_of(exercise)})
    for text in [*sorted(code), *sorted(_of_checks(exercise))]:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:LENGTH]


def _of_checks(exercise: str) -> set[str]:
    """The code of an exercise's checks, and all of the autograder's that makes their inputs."""
    home = f"autograder.checks.{exercise.partition('.')[0]}"
    checks_of(exercise)
    names = {name for name, value in vars(importlib.import_module(home)).items()
             if isinstance(value, Check) and value.exercise == exercise}
    found: set[str] = set()
    waiting, done = [(home, names)], set()
    while waiting:
        module, names = waiting.pop()
        source = _source(module)
        for name in _reached(source, frozenset(names)):
            if (module, name) in done:
                continue
            done.add((module, name))
            if name in source.imports:
                origin, there = source.imports[name]
                whole = f"{origin}.{there}"
                if there and _is_input(whole):                       # a module
                    waiting.append((whole, {*_source(whole).bound_names}))
                elif _is_input(origin):
                    waiting.append((origin, {there or name}))
            else:
                found |= _texts(module).get(name, set())
    return found


def _closure(module: ModuleSource, names: set[str]) -> set[str]:
    """The code of definitions of a module, and of those in it that they use."""
    return {text for name in _reached(module, frozenset(names))
            for text in _texts(module.home).get(name, ())}


def _is_input(module: str) -> bool:
    if not module.startswith(INPUTS):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@cache
def _source(module: str) -> ModuleSource:
    spec = importlib.util.find_spec(module)
    with open(spec.origin, encoding="utf-8") as file:
        return ModuleSource(module, file.read())


@cache
def _reached(module: ModuleSource, names: frozenset[str]) -> frozenset[str]:
    """Names of a module, and all that their definitions use, however indirectly."""
    uses = _uses(module)
    reached, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += uses.get(name, ())
    return frozenset(reached)


@cache
def _uses(module: ModuleSource) -> dict[str, set[str]]:
    """For each name that a module binds, the names that its definition reads."""
    uses: dict[str, set[str]] = {}
    for node in module.tree.body:
        for name in _bound(node):
            uses.setdefault(name, set()).update(
                part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    return uses


@cache
def _texts(module: str) -> dict[str, set[str]]:
    """The code of each definition of a module, by its name."""
    texts: dict[str, set[str]] = {}
    for node in _source(module).tree.body:
        for name in _bound(node):
            texts.setdefault(name, set()).add(canonical(_Silent().visit(
                ast.parse(ast.unparse(node)))))
    return texts


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    return {part.id for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


class _Silent(ast.NodeTransformer):
    """Takes out what is only said: docstrings, and the words and points of checks."""

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg in WORDS else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)
