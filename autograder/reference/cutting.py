"""Cuts definitions out of the reference: what a learner starts from, and what the solution is.

A cut of a function or class keeps its decorators, signature, annotations, docstring and
constants, empties the bodies that the learner writes, and brings the imports that those bodies
need. It works on text, so that what was written by hand stays as it was.
`autograder.submissions.grafting` goes the other way round, with the same definitions and spans.
"""

import ast
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autograder.reference.names import home_of, methods_of, module_of, names_of
from autograder.reference.source import (CuttingError, Function, ModuleSource, global_names,
                                         module_source, span)

# nbgrader takes out what is between these marks. The first one goes on with the name of what
# stands between them.
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
COLUMNS = 96                # of the lines that are made here, as of all others


def filled(opening: str, items: Sequence[str], closing: str) -> str:
    """A list of code between brackets, in as many lines as it takes.

    >>> print(filled("from math import (", [f"function_{n}" for n in range(1, 8)], ")"))
    from math import (function_1, function_2, function_3, function_4, function_5, function_6,
                      function_7)
    """
    return textwrap.fill(", ".join(items) + closing, COLUMNS, initial_indent=opening,
                         subsequent_indent=" " * len(opening), break_long_words=False,
                         break_on_hyphens=False)


def import_lines(module: ModuleSource, names: Collection[str],
                 own: Mapping[str, str]) -> list[str]:
    """The imports that give code cut out of a module these names of it.

    own: name -> module of what is there already, such as what a learner has written before. It
    is not imported. Raises CuttingError when the reference would take the place of the
    learner's own: by another name, as a module, or because two modules use one name for
    different things.
    """
    # (module, name of it or "from") -> what its import lists
    wanted: dict[tuple[str, str], list[str]] = {}
    for name in [*module.imports, *sorted(module.bound_names - module.imports.keys())]:
        if name not in names:
            continue
        origin, there = module.imports.get(name, (module.home, name))
        written = there in own and origin == home_of(own[there])
        if written and name == there:
            continue
        if written or name in own:
            raise CuttingError(f"{module.home} knows {origin}.{there} as {name}",
                               "the name of an exercise must mean the same in the whole "
                               "reference", "give it one name everywhere")
        if f"{origin}.{there}".rstrip(".") in map(home_of, own.values()):
            raise CuttingError(f"{module.home} imports {there or origin} as a module",
                               "an exercise is a part of it, and the learner's own would not "
                               "be used", "import the names themselves")
        listed = there if there in ("", name) else f"{there} as {name}"
        wanted.setdefault((origin, "from" if there else name), []).append(listed)
    lines = []
    for (origin, name), parts in wanted.items():
        if name == "from":
            line = f"from {origin} import {', '.join(sorted(parts))}"
            lines.append(line if len(line) <= COLUMNS
                         else filled(f"from {origin} import (", sorted(parts), ")"))
        else:
            plain = origin == name or origin.startswith(f"{name}.") or "," in origin
            lines.append(f"import {origin}" if plain else f"import {origin} as {name}")
    return lines


@dataclass(frozen=True)
class Cut:
    """An exercise's cell: as learners get it, solved, and solved between nbgrader's marks."""

    stub: str
    solution: str
    marked: str


def cut(module: ModuleSource, names: Sequence[str], methods: Collection[str] = (),
        own: Mapping[str, str] | None = None,
        exhibit: tuple[str, ModuleSource] | None = None,
        given: Collection[str] | None = None) -> Cut:
    """Cut definitions out of a module.

    methods: as for `ModuleSource.bodies`. own: as for `import_lines`. exhibit: the name of a
    mutant and the module as the mutant has it; its bodies, broken as they are, take the place
    of empty ones. given: None for whole definitions; else the cell continues a class, the
    learner's own or, where there is none, the reference's, by `methods` and these ones, which
    it shows as they are.
    Raises CuttingError when a name is missing or has nothing to write.
    """
    cells: dict[str, list[str]] = {"stub": [], "solution": [], "marked": []}
    for name in names:
        bodies = module.bodies(name, methods)
        opening, pieces = [], [span(module.definition(name))]
        if given is not None:
            opening, pieces = _continuation(module, name, {*methods, *given},
                                            documented=name not in (own or {}))
        for state, texts in cells.items():
            lines = list(opening)
            for first, last in pieces:
                at = first
                for body in bodies:
                    if not first <= body.first <= last:
                        continue
                    lines += module.lines(at, body.first - 1)
                    solution = module.lines(body.first, body.last)
                    if state == "stub":
                        lines += starting_lines(body.component, body.margin,
                                                exhibit and exhibit[1])
                    elif state == "solution":
                        lines += solution
                    else:
                        mark = f"{BEGIN} {body.component}"
                        mark += f" {exhibit[0]}" if exhibit else ""
                        lines += [body.margin + mark, *solution, body.margin + END]
                    at = body.last + 1
                lines += module.lines(at, last)
                if given is not None:
                    lines.append("")
            texts.append("\n".join(lines).rstrip())
    used = global_names("\n".join(cells["solution"]))
    if given is not None:
        used |= {*names}                    # its base is the class of the same name
    if exhibit:
        used |= global_names("\n".join(cells["stub"]))
    imports = import_lines(module, used, own or {})
    head = ["\n".join(imports)] if imports else []
    return Cut(*("\n\n\n".join(head + texts) for texts in cells.values()))


def _continuation(module: ModuleSource, name: str, methods: Collection[str],
                  documented: bool) -> tuple[list[str], list[tuple[int, int]]]:
    """The first lines of what continues a class, and the spans of what follows them.

    methods: those that follow. documented: whether the class's docstring comes before them.
    """
    node = module.definition(name)
    if isinstance(node, Function):
        raise CuttingError(f"{module.name}.{name} cannot be continued", "it is a function",
                           "leave `methods` out")
    found = {method.name: method for method in node.body if isinstance(method, Function)}
    unknown = {*methods} - found.keys()
    if unknown:
        raise CuttingError(f"{module.name}.{name} has no method {min(unknown)}",
                           "the exercise is to show it",
                           "its methods are " + ", ".join(found))
    pieces = [span(method) for method in found.values() if method.name in methods]
    if documented and ast.get_docstring(node) is not None:
        pieces.insert(0, span(node.body[0]))
    return [f"class {name}({name}):"], pieces


def starting_lines(component: str, margin: str,
                   exhibit: ModuleSource | None = None) -> list[str]:
    """What stands in the place of a body: the error that names it, or the exhibit's body.

    component: `module.name` or `module.Class.method`.

    >>> starting_lines("layers.silu", "    ")
    ['    raise NotImplementedError("layers.silu: write this function")']
    """
    if exhibit is None:
        told = f'"{component}: write this function")'
        line = f"{margin}raise NotImplementedError({told}"
        return ([line] if len(line) <= COLUMNS
                else [f"{margin}raise NotImplementedError(", f"{margin}    {told}"])
    name = component.removeprefix(f"{exhibit.name}.")
    owner, _, method = name.partition(".")
    body = exhibit.bodies(owner, [method] if method else [])[0]
    return exhibit.lines(body.first, body.last)


def stub_of(exercise: str) -> str:
    """The start of an exercise, as source that runs by itself.

    >>> print(stub_of("layers.silu").splitlines()[-1])
        raise NotImplementedError("layers.silu: write this function")
    """
    methods = methods_of(exercise)
    return cut(module_source(module_of(exercise)), names_of(exercise), methods,
               given=() if methods else None).stub
