"""What is cut keeps what the learner reads, loses what the learner writes,
and runs by itself. 3 s."""

import ast
import doctest
import importlib
import inspect
import re

import pytest

from autograder.checking import exercises
from autograder.reference.cutting import BEGIN, END, cut, starting_lines, stub_of
from autograder.reference.names import methods_of, module_of, names_of
from autograder.reference.source import CuttingError, ModuleSource, global_names, module_source
from autograder.variants.mutation import exhibit_source

MODULES = ["accounting", "attention", "kv_cache", "layers", "pipeline", "sampling", "tokenizer",
           "museum"]
COMPONENTS = [(module, name) for module in MODULES
              for name in module_source(module).definitions]

ODD = ModuleSource("odd", '''\
"""A module with everything that is hard to cut."""
from __future__ import annotations
import contextlib
import os.path
import os.path as paths
import xml.dom
import xml.sax
from math import pi as PI, tau
from typing import TYPE_CHECKING
from gearworks.layers import linear, softmax
try:
    import numpy as np
except ImportError:
    np = None

LIMIT, _SPARE = 3, 4
def _given(x): return x

@contextlib.contextmanager
@_decorate(
    LIMIT)
def decorated(
        x: np.ndarray, n: int = LIMIT,  # one colon: here
        *, unused: dict[str, PI] = {"a:b": 1},
) -> Iterator[float]:
    """Say it.

    >>> decorated
    """
    # a comment that is part of the solution

    # and another
    text = """
at the margin
    """
    def inner(tau):
        return tau + _given(x) + sum(linear for linear in range(3))
    yield inner(1)  # the last line
    # a comment below the last line

def undocumented(x):

    # the first line of the solution
    return softmax(os.path.join(x, LIMIT), xml.sax, paths)

def mate(x): return undocumented(x)

def empty():
    """Nothing here."""

class Odd(Base):
    """A class."""

    FIELD: int = _SPARE
    """what it is"""

    def __init__(self):
        """Make it."""
        self.x = FIELD = 1

    @property
    def x(self):
        return self._x

    @x.setter
    def x(self, value):
        self._x = value

    async def _private(self):
        return tau

    @staticmethod
    def total(values):
        """Add up."""
        return sum(values)
''')


FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize(("module", "name"), COMPONENTS)
def test_a_cut_runs_by_itself_and_its_stub_says_which_function_is_missing(module, name):
    source = module_source(module)
    try:
        pieces = cut(source, [name])
    except CuttingError as error:
        assert "nothing to write" in error.what
        return
    namespace: dict = {"__name__": module}
    exec(pieces.solution, namespace)

    # The examples of its docstring hold for the cut, which has nothing but the imports that it
    # brought.
    reference = (vars(importlib.import_module(f"gearworks.{module}"))
                 | {"np": importlib.import_module("numpy")})
    globs = reference | {name: namespace[name]}
    for test in doctest.DocTestFinder().find(namespace[name], name, module=False, globs=globs):
        assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0

    # The stub differs from the solution in the bodies alone.
    written = {body.component.removeprefix(f"{module}.") for body in source.bodies(name)}
    stub, solution = ast.parse(pieces.stub), ast.parse(pieces.solution)
    for tree, is_stub in ((stub, True), (solution, False)):
        for owner in ast.walk(tree):
            for node in ast.iter_child_nodes(owner):
                path = getattr(node, "name", "") if owner is tree else ""
                if isinstance(owner, ast.ClassDef) and hasattr(node, "name"):
                    path = f"{owner.name}.{node.name}"
                if path in written:
                    if is_stub:
                        said = node.body[-1].exc.args[0].value
                        assert said == f"{module}.{path}: write this function"
                    node.body = node.body[:1] if ast.get_docstring(node) is not None else []
    assert ast.dump(stub) == ast.dump(solution)


def test_the_marks_stand_around_exactly_what_the_stub_lacks():
    for names in (["decorated"], ["undocumented"], ["Odd"], ["decorated", "Odd"]):
        pieces = cut(ODD, names)
        without_marks = [line for line in pieces.marked.split("\n")
                         if BEGIN not in line and END not in line]
        assert "\n".join(without_marks) == pieces.solution
        region = re.compile(rf"^( *){BEGIN} ([\w.]+)\n(?s:.*?)^ *{END}$", re.M)
        assert (region.sub(lambda mark: starting_lines(mark[2], mark[1])[0], pieces.marked)
                == pieces.stub)


def test_decorators_signature_and_docstring_stay_and_comments_of_the_solution_go():
    stub = cut(ODD, ["decorated"]).stub
    assert stub[stub.index("@context"):] == '''\
@contextlib.contextmanager
@_decorate(
    LIMIT)
def decorated(
        x: np.ndarray, n: int = LIMIT,  # one colon: here
        *, unused: dict[str, PI] = {"a:b": 1},
) -> Iterator[float]:
    """Say it.

    >>> decorated
    """
    raise NotImplementedError("odd.decorated: write this function")'''
    assert cut(ODD, ["undocumented"]).stub.endswith('def undocumented(x):\n    raise '
                                                    'NotImplementedError("odd.undocumented: '
                                                    'write this function")')


def test_imports_are_those_that_signature_and_body_need():
    def imports(*names, own=None):
        return {line for line in cut(ODD, names, own=own).solution.splitlines()
                if re.match("import|from", line)}

    # Of tau and linear the function has its own; np is bound by a condition, so it comes from
    # the module itself.
    assert imports("decorated") == {"import contextlib", "from math import pi as PI",
                                    "from gearworks.odd import LIMIT, _given, np"}
    assert (imports("undocumented")
            == {"import os.path", "import os.path as paths", "import xml.dom, xml.sax",
                "from gearworks.layers import softmax", "from gearworks.odd import LIMIT"})
    assert imports("Odd") == {"from math import tau", "from gearworks.odd import _SPARE"}


@pytest.mark.parametrize("exercise", exercises())
def test_what_a_solution_may_call_can_be_asked_for_help(exercise):
    """A learner reads neither the reference nor a private name's missing docstring."""
    solution = cut(module_source(module_of(exercise)), names_of(exercise),
                   methods_of(exercise)).solution
    called = [(node.module, alias.name) for node in ast.parse(solution).body
              if isinstance(node, ast.ImportFrom) and node.module.startswith("gearworks")
              for alias in node.names]
    for module, name in called:
        found = getattr(importlib.import_module(module), name)
        assert not name.startswith("_"), f"{module}.{name}"
        asked = {name: found} if inspect.isroutine(found) or inspect.isclass(found) else {}
        if inspect.isclass(found) and found.__module__.startswith("gearworks"):
            asked |= {f"{name}.{part}": value for part, value in vars(found).items()
                      if not part.startswith("_") and inspect.isfunction(value)}
        assert [each for each, value in asked.items() if not inspect.getdoc(value)] == []


def test_what_the_learner_wrote_is_never_imported():
    stub = cut(ODD, ["undocumented"], own={"softmax": "layers", "linear": "layers"}).stub
    assert "softmax" not in stub
    together = cut(module_source("tokenizer"), ["decode", "IncrementalDetokenizer"],
                   own={"decode": "tokenizer"}).stub
    assert "import decode" not in together and "Detokenizer\n" not in together


@pytest.mark.parametrize(("own", "what"), [
    # another thing under the learner's name
    ({"pi": "math_chapter", "PI": "geometry"}, "knows math.pi as PI"),
    ({"softmax": "attention"}, "knows gearworks.layers.softmax as softmax"),
])
def test_a_name_that_means_two_things_is_refused(own, what):
    with pytest.raises(CuttingError, match=what):
        cut(ODD, ["undocumented", "decorated"], own=own)


def test_a_module_that_holds_the_learners_own_is_refused():
    module = ModuleSource(
        "user", "from gearworks import layers\ndef f(x):\n    return layers.softmax(x)\n")
    assert "from gearworks import layers" in cut(module, ["f"]).stub
    with pytest.raises(CuttingError, match="imports layers as a module"):
        cut(module, ["f"], own={"softmax": "layers"})


def test_methods_are_stubbed_one_by_one():
    all_of_them = cut(ODD, ["Odd"]).stub
    assert (all_of_them.count("write this function") == 4 and "return tau" in all_of_them
            and "_SPARE" in all_of_them)
    one = cut(ODD, ["Odd"], ["total"]).stub
    assert (one.count("write this function") == 1 and "self.x = FIELD" in one
            and "@staticmethod" in one)
    with pytest.raises(CuttingError, match="has no method subtotal"):
        cut(ODD, ["Odd"], ["total", "subtotal"])


@pytest.mark.parametrize(("name", "what"), [("mate", "cannot be cut"), ("empty", "has no body"),
                                            ("absent", "there is no odd.absent")])
def test_what_cannot_be_cut_is_named(name, what):
    with pytest.raises(CuttingError, match=what):
        cut(ODD, [name])


def test_an_exhibit_starts_from_the_broken_body():
    broken = ModuleSource("odd",
                          ODD.text.replace("return softmax(os.path", "return linear(os.path"))
    pieces = cut(ODD, ["undocumented"], exhibit=("swapped", broken))
    assert "return linear(" in pieces.stub and "softmax(" not in pieces.stub
    assert "return softmax(" in pieces.solution
    assert f"{BEGIN} odd.undocumented swapped\n" in pieces.marked
    assert starting_lines("odd.undocumented", "    ", broken)[-1] in pieces.stub


def test_the_exhibit_of_the_museum_is_the_mutant_of_that_name():
    broken = exhibit_source("museum", "tutorial-engine")
    assert broken.text != module_source("museum").text
    pieces = cut(module_source("museum"), ["conversation_ids"],
                 exhibit=("tutorial-engine", broken))
    assert "[0] * len(ids)" in pieces.stub and "[0] * len(ids)" not in pieces.solution
    # the solution uses one of them
    assert "from gearworks.museum import BOS, EOS\n" in pieces.stub


def test_stub_of_takes_a_pair_and_refuses_a_module_that_is_not_there():
    namespace: dict = {}
    exec(stub_of("layers.softmax+silu"), namespace)
    for name in ("softmax", "silu"):
        with pytest.raises(NotImplementedError, match=f"layers.{name}: write"):
            namespace[name](1)
    with pytest.raises(CuttingError, match="there is no module gearworks.nothing.at"):
        stub_of("nothing.at.all")


def test_global_names_sees_scopes():
    assert global_names("class A(B):\n    x = y\n    def f(self, z: T = q):\n        x = z\n"
                        "        return [k for k in x if p]") == {"B", "y", "T", "q", "p"}
    assert global_names("def f(x):\n    return x\ng = f\n") == set()
