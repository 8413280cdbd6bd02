"""Versions of a component beside the reference: mutants, which must fail its checks, and
accepted versions, which must pass them.

A mutant is a list of small edits of the reference's source, so that it stays in step with it.
mutants/<module>.toml:

    [[mutant]]
    component = "attention.attention"
    name = "mask-top-left"
    edits = [{ in = "causal_mask", find = "k=S - T + 1", replace = "k=1" }]
    story = "Causal mask aligned top-left with a cache (pytorch#108108)"
    says = "This is what you get when the mask is aligned to the top left."

`in` names a definition at the top level of the component's module, or a `Class.method`; `find`
occurs in its text once, wherever its lines are broken. `says`, which may be left out, is what a
learner reads whose results equal the mutant's. Every name that a mutant uses must be defined,
since any check kills what raises NameError; where that is the mistake, `undefined` lists the
names.

An accepted version is a file, accept/<module>/<name>__<style>.py, that defines the component in
another style; <name> is a name of the exercise, or all of them with + between, or
<Class>.<method>+<method>. What the file does not define is the reference's.
"""

import ast
import builtins
import dis
import importlib
import importlib.util
import inspect
import linecache
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from autograder.reference.names import (components_of, home_of, methods_of, module_of,
                                        names_of)
from autograder.reference.source import Definition, ModuleSource, span
from gearworks.errors import GearworksError

FOLDER = Path(__file__).parents[1]           # which holds mutants/ and accept/


class VariantError(GearworksError, ValueError):
    """A mutant or an accepted version does not fit the reference."""


@dataclass(frozen=True)
class Edit:
    """One replacement of text: `find` occurs once in the definition or method `where`."""

    where: str
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong version.

    story: what it is, and who met it. says: what a learner reads who gets its results.
    undefined: names that it uses and nothing defines.
    """

    component: str
    name: str
    edits: tuple[Edit, ...]
    story: str
    says: str = ""
    undefined: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accepted:
    """A correct version in another style."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem


def reference_subjects(exercise: str) -> list[Any]:
    """The reference's functions or classes that an exercise names.

    >>> [subject.__name__ for subject in reference_subjects("layers.rms_norm")]
    ['rms_norm']
    """
    module = engine_module(exercise)
    return [_member(module, name, exercise) for name in names_of(exercise)]


@cache
def mutants_of(exercise: str) -> tuple[Mutant, ...]:
    """An exercise's mutants, in the file's order. Raises VariantError if the file is wrong."""
    path = FOLDER / "mutants" / f"{exercise.partition('.')[0]}.toml"
    if not path.exists():
        return ()
    components = components_of(exercise)
    return tuple(mutant for mutant in _read_mutants(path) if mutant.component in components)


@cache
def accepted_of(exercise: str) -> tuple[Accepted, ...]:
    """The accepted versions of an exercise, by name."""
    whole = exercise.removeprefix(f"{module_of(exercise)}.")
    names = [whole] if methods_of(exercise) else [*names_of(exercise), whole]
    prefixes = tuple(f"{name}__" for name in names)
    folder = FOLDER / "accept" / exercise.partition(".")[0]
    return tuple(Accepted(path) for path in sorted(folder.glob("*__*.py"))
                 if path.name.startswith(prefixes))


def load_mutant(exercise: str, mutant: Mutant) -> list[Any]:
    """An exercise's subjects in the mutant. Raises VariantError if an edit does not apply."""
    component = _member(engine_module(exercise), names_of(mutant.component)[0], exercise)
    mutated = mutated_namespace(inspect.getmodule(component), mutant)
    return [mutated.get(name, subject)
            for name, subject in zip(names_of(exercise), reference_subjects(exercise))]


def load_accepted(exercise: str, accepted: Accepted) -> list[Any]:
    """An exercise's subjects in the accepted version. Raises VariantError if it has none."""
    spec = importlib.util.spec_from_file_location(f"accepted_{accepted.name}", accepted.path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module                          # dataclasses look their module up
    spec.loader.exec_module(module)
    names = names_of(exercise)
    if not any(hasattr(module, name) for name in names):
        raise VariantError(f"{accepted.path.name} is no version of {exercise}",
                           f"it defines none of {', '.join(names)}",
                           "define the function or class under its own name")
    return [getattr(module, name, subject)
            for name, subject in zip(names, reference_subjects(exercise))]


def mutated_namespace(module: ModuleType, mutant: Mutant) -> dict[str, Any]:
    """The module's names as `edited_namespace` has them, after the edits of a mutant.

    Raises VariantError when an edit does not apply, or uses a name that nothing defines.
    """
    namespace, code = edited_namespace(module, _with_edits(inspect.getsource(module), mutant),
                                       {edit.where.partition(".")[0] for edit in mutant.edits},
                                       f"<mutant {mutant.component} {mutant.name}>")
    unknown = [name for name in _globals_read(code)
               if name not in namespace and not hasattr(builtins, name)]
    if {*unknown} - {*mutant.undefined}:
        raise _refusal(mutant, f"it uses {unknown[0]}, which {module.__name__} does not define")
    return namespace


def edited_namespace(module: ModuleType, source: str, edited: Collection[str],
                     filename: str) -> tuple[dict[str, Any], CodeType]:
    """A module's names, with the edited definitions, and those that use them, made anew.

    source: the module's, after the edits. All other names are the module's own objects, so that
    a dataclass of a mutant's result is the dataclass that checks know. Returns the code that
    made the new ones, too.
    """
    tree = ast.parse(source)
    affected = _affected(tree, {*edited})
    tree.body = [node for node in tree.body
                 if _names_bound(node) & affected or _is_future_import(node)]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(vars(module))
    code = compile(tree, filename, "exec")
    exec(code, namespace)
    return namespace, code


def exhibit_source(module: str, name: str) -> ModuleSource:
    """A module of the engine, such as "museum", as its mutant of this name has it.

    Raises VariantError when there is no such mutant, or when it no longer applies.
    """
    path = FOLDER / "mutants" / f"{module.partition('.')[0]}.toml"
    found = [mutant for mutant in (_read_mutants(path) if path.exists() else ())
             if mutant.name == name]
    if len(found) != 1:
        raise VariantError(f"cannot make the mutant {name} of {module}",
                           f"{path.name} has {len(found)} of this name", "is the name right?")
    source = inspect.getsource(engine_module(f"{module}.{name}"))
    return ModuleSource(module, _with_edits(source, found[0]))


def engine_module(name: str) -> ModuleType:
    """The module of the engine that an exercise or a component is about."""
    home = home_of(module_of(name))
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise
    raise VariantError(f"there is no component {name}", f"there is no module {home}",
                       "is the name right?")


def _member(module: ModuleType, name: str, exercise: str) -> Any:
    if not hasattr(module, name):
        raise VariantError(f"there is no component {exercise}",
                           f"{module.__name__} defines no {name}", "is the name right?")
    return getattr(module, name)


@cache
def _read_mutants(path: Path) -> tuple[Mutant, ...]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    except tomllib.TOMLDecodeError as error:
        raise VariantError(f"{path.name} cannot be read", str(error), "is it TOML?") from error
    mutants = []
    for number, entry in enumerate(entries, start=1):
        try:
            edits = tuple(Edit(edit["in"], edit["find"], edit["replace"])
                          for edit in entry["edits"])
            mutants.append(Mutant(entry["component"], entry["name"], edits, entry["story"],
                                  entry.get("says", ""), tuple(entry.get("undefined", ()))))
        except (KeyError, TypeError) as error:
            raise VariantError(f"mutant {number} of {path.name} is incomplete",
                               f"it lacks {error}",
                               "give component, name, story and edits, each edit with in, find "
                               "and replace") from error
        if not edits:
            raise VariantError(f"mutant {number} of {path.name} changes nothing",
                               "it has no edits", "give one, or remove it")
    names = [(mutant.component, mutant.name) for mutant in mutants]
    for name in names:
        if names.count(name) > 1:
            raise VariantError(f"{path.name} has two mutants {name[1]} of {name[0]}",
                               "names tell them apart", "rename one")
    return tuple(mutants)


def _with_edits(source: str, mutant: Mutant) -> str:
    for edit in mutant.edits:
        source = _edited(source, edit, mutant)
    return source


def _edited(source: str, edit: Edit, mutant: Mutant) -> str:
    node: ast.AST = ast.parse(source)
    for name in edit.where.split("."):
        inside = [child for child in getattr(node, "body", []) if name in _names_bound(child)]
        if not inside:
            raise _refusal(mutant, f"there is no definition {edit.where}")
        node = inside[-1]
    first, last = span(node)
    lines = source.splitlines(keepends=True)
    own = "".join(lines[first - 1:last])
    found = _anywhere(edit.find).findall(own)
    if len(found) != 1:
        raise _refusal(mutant, f"{edit.find!r} occurs {len(found)} times in {edit.where}, and "
                               "must occur once")
    own = own.replace(found[0], edit.replace)
    edited = "".join([*lines[:first - 1], own, *lines[last:]])
    try:
        ast.parse(edited)
    except SyntaxError as error:
        raise _refusal(mutant, f"after it, {edit.where} is no Python: {error}") from error
    return edited


def _anywhere(text: str) -> re.Pattern:
    """What finds a piece of code wherever its lines are broken: at a space, within brackets."""
    pattern = re.sub(r"(?<=[(\[{])(?=\S)|(?<=\S)(?=\\[)\]}])", r"\\s*", re.escape(text))
    return re.compile(re.sub(r"(?<=\S)\\ (?=\S)", r"\\s+", pattern))


def _refusal(mutant: Mutant, why: str) -> VariantError:
    return VariantError(f"the mutant {mutant.name} of {mutant.component} does not apply", why,
                        f"edit it in mutants/{mutant.component.partition('.')[0]}.toml")


def _globals_read(code: CodeType) -> Iterator[str]:
    """The global names that the functions of compiled code look up."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_read(inner)


def _affected(tree: ast.Module, edited: set[str]) -> set[str]:
    """The names whose definitions are edited or use, however indirectly, one that is."""
    uses = [(_names_bound(node),
             {part.id for part in ast.walk(node) if isinstance(part, ast.Name)})
            for node in tree.body]
    affected = set(edited)
    while True:
        more = {name for bound, used in uses if used & affected for name in bound} - affected
        if not more:
            return affected
        affected |= more


def _names_bound(node: ast.AST) -> set[str]:
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {part.id for target in targets for part in ast.walk(target)
                if isinstance(part, ast.Name)}
    return set()


def _is_future_import(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
