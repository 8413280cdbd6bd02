"""How the code is laid out: the page that tells it is true,
and imports run one way. A second."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "book" / "architecture.md"
PACKAGES = {"gearworks": REPOSITORY / "solutions" / "gearworks",
            "autograder": REPOSITORY / "autograder"}
NO_CODE = {"tests", "accept", "mutants", "source", "release", "submitted", "autograded",
           "feedback", "__pycache__"}


def modules(package: str) -> dict[str, Path]:
    """The modules of a package by their dotted names; a folder's is that of its __init__."""
    root = PACKAGES[package]
    paths = [path for path in root.rglob("*.py")
             if not NO_CODE & {*path.relative_to(root).parts}]
    return {".".join([package, *path.relative_to(root).with_suffix("").parts])
            .removesuffix(".__init__"): path for path in paths}


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The known modules that a module imports, inside of functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            yield from [each for each in (name, name.rpartition(".")[0]) if each in known][:1]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The nodes from which a way leads back to themselves."""
    def reached(node: str) -> set[str]:
        seen, waiting = set(), list(graph[node])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += graph[other]
        return seen
    return [node for node in graph if node in reached(node)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_by_way_of_others(package):
    known = modules(package)
    graph = {name: {*imports(path, known)} - {name} for name, path in known.items()}
    # a package's face only hands on what its modules define
    graph = {name: {other for other in others if not name.startswith(f"{other}.")}
             for name, others in graph.items()}
    assert circles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_between_rooms_run_one_way(package):
    known = modules(package)

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    graph = {room(name): set() for name in known}
    for name, path in known.items():
        graph[room(name)] |= {room(other) for other in imports(path, known)} - {room(name)}
    assert circles(graph) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def test_the_engine_knows_nothing_of_the_autograder():
    both = modules("gearworks") | modules("autograder")
    found = {name for name, path in modules("gearworks").items()
             for other in imports(path, both) if other.startswith("autograder")}
    assert found == set()


def test_every_path_on_the_page_is_in_the_tree():
    text = PAGE.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:solutions|autograder|book)/[\w/.]+)`", text)
    assert len(paths) > 40
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_every_box_on_the_page_is_a_module_of_one_of_the_packages():
    boxes = re.findall(r'font-family="monospace"[^>]*>([\w/.]+)<', PAGE.read_text("utf-8"))
    assert len(boxes) == 15
    assert [box for box in boxes if not any((root / box).is_file()
                                            for root in PACKAGES.values())] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_on_the_page(package):
    rooms = {path.parent for path in PACKAGES[package].glob("*/__init__.py")
             if path.parent.name not in NO_CODE}
    named = PAGE.read_text(encoding="utf-8")
    missing = [room for room in rooms
               if f"`{room.relative_to(REPOSITORY).as_posix()}`" not in named]
    assert len(rooms) >= 9 and missing == []


def test_the_linter_has_nothing_to_say():
    """Lines of at most 96 columns, in notebooks too; names that are there, and are used."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout


def test_every_exercise_has_a_home():
    from importlib import import_module

    from autograder.checking import exercises
    from autograder.reference.names import HOMES, home_of, module_of, names_of, short_name

    for exercise in exercises():
        module = import_module(home_of(module_of(exercise)))
        assert all(hasattr(module, name) for name in names_of(exercise)), exercise
    used = {module_of(exercise) for exercise in exercises()}
    assert HOMES.keys() <= used                             # no line is left over
    for module, home in HOMES.items():
        assert short_name(home) == module and home != f"gearworks.{module}"
