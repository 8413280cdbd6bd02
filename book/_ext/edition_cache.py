"""What chapters show when they run, kept: one runs again only when that can have changed.

What decides: the chapter's code, but not its text, every module of `gearworks` and `autograder`
that it imports, directly or through others, the checks and exhibits of its exercises, the pins
of the model, which stand in a module, and the versions of other packages.
"""

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import nbformat
from filelock import FileLock
from inline_plots import KERNEL_ARGUMENTS, check_descriptions, with_inline_plots
from machine_watch import Watch, from_metadata, is_busy, note, to_metadata
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from autograder.chapters import editions
from autograder.chapters.chapter import MEASURED, Chapter, ChapterError, python_of
from autograder.reference.names import home_of

PACKAGES = ("gearworks", "autograder")
KEPT = 4                      # runs of one chapter, for switching between branches
WATCHED = "gearworks"         # in a kept run's metadata: the machine, and what it did besides


def run_key(chapter: Chapter) -> str:
    """A digest of everything that decides what a chapter's code shows."""
    packages = {name: Path(importlib.util.find_spec(name).origin).parent for name in PACKAGES}
    cells = [python_of(cell.source) for cell in chapter.cells
             if cell.kind == "code" and "raises-exception" not in cell.tags]
    modules = {exercise.module for exercise in chapter.exercises}
    checks = [f"import {home_of(module)}, autograder.checks.{module}"
              for module in sorted(modules)]
    files, others = imported_files([*cells, *checks, "from autograder import check"], packages)
    files |= {packages["autograder"] / "mutants" / f"{exercise.module}.toml"
              for exercise in chapter.exercises if exercise.exhibit}
    files |= {Path(__file__), Path(editions.__file__),
              *(Path(__file__).with_name(f"{name}.py") for name in ("inline_plots",
                                                                    "machine_watch"))}

    digest = hashlib.sha256(f"{sys.version_info[:2]} {chapter.stem}\n".encode())
    for cell in chapter.cells:
        if cell.kind == "code":
            asked = cell.exercise and replace(cell.exercise, minutes=0, level=0, hints=(),
                                              line=0)
            digest.update(f"{cell.source}\n{cell.tags} {asked}\n".encode())
    for path in sorted(files):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    for name in sorted(others):
        try:
            digest.update(f"{name} {metadata.version(name)}\n".encode())
        except metadata.PackageNotFoundError:
            continue                  # of the standard library, or installed under another name
    return digest.hexdigest()[:20]


def imported_files(sources: Iterable[str],
                   packages: Mapping[str, Path]) -> tuple[set[Path], set[str]]:
    """What code imports, also through others: files of `packages`, names of other packages.

    packages: name -> its folder. A package counts with the files in its folder that are no
    Python, such as scripts and styles. Imports inside functions count; `import_module` does
    not.
    """
    files: set[Path] = set()
    others: set[str] = set()
    waiting = [module for source in sources for module in _imports(source)]
    while waiting:
        first, *rest = waiting.pop().split(".")
        if first not in packages:
            others.add(first)
            continue
        path = packages[first]
        found = [path / "__init__.py"]
        for part in rest:                  # the last part may be a name in the module before it
            path = path / part
            found += [path.with_suffix(".py"), path / "__init__.py"]
        for file in found:
            if file in files or not file.is_file():
                continue
            files.add(file)
            if file.name == "__init__.py":
                files |= {other for other in file.parent.iterdir()
                          if other.is_file() and not other.suffix.startswith(".py")
                          and other.name[0] != "."}
            waiting += _imports(file.read_text(encoding="utf-8"))
    return files, others


def _imports(source: str) -> list[str]:
    """The dotted names that code imports, in functions too."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def executed_edition(chapter: Chapter, key: str, root: Path, folder: Path,
                     on_cell: Callable[[int, int], None], quiet: bool = False) -> NotebookNode:
    """A chapter's book edition; what its cells show is from the cache, or from a run now.

    key: from `run_key`. folder: of the cache; several builds may share it. on_cell: called
    while the chapter runs, with how many code cells are done and how many there are. quiet: a
    run on a busy machine does not count; it is run again, once. Raises ChapterError when the
    chapter does not run, and when the machine is busy though `quiet` is asked for.
    """
    path = folder / f"{chapter.stem}-{key}.ipynb"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{chapter.stem}.lock"):
        if not path.is_file() or quiet and busy_cells(nbformat.read(path, as_version=4)):
            check_descriptions(chapter)
            _run(chapter, root, path, on_cell)
            for old in sorted(folder.glob(f"{chapter.stem}-*.ipynb"),
                              key=lambda path: path.stat().st_mtime)[:-KEPT]:
                old.unlink()
        run = nbformat.read(path, as_version=4)
    if quiet and (busy := busy_cells(run)):
        raise ChapterError(f"{chapter.path.name} was measured on a busy machine",
                           f"in {len(busy)} of its cells other programs took processors or "
                           "memory", "close what else is running, and build again")
    edition = editions.book_edition(chapter, root, [cell.outputs for cell in run.cells])
    _add_notes(edition, run)
    return with_inline_plots(edition, chapter)


def busy_cells(run: NotebookNode) -> list[int]:
    """The numbers of the code cells of a kept run whose figures are of a busy machine."""
    machine, moments = from_metadata(run.metadata[WATCHED])
    return [number for number, moment in moments.items() if is_busy(moment, machine)]


def kept_run_is_busy(chapter: Chapter, key: str, folder: Path) -> bool:
    """Whether a page has figures of a busy machine; False where nothing is kept."""
    path = folder / f"{chapter.stem}-{key}.ipynb"
    return path.is_file() and bool(busy_cells(nbformat.read(path, as_version=4)))


def _run(chapter: Chapter, root: Path, path: Path,
         on_cell: Callable[[int, int], None]) -> None:
    """Run a chapter, and keep what its cells show and what the machine did besides."""
    watch, done = Watch(), 0

    def around(cell: NotebookNode, has_run: bool) -> None:
        nonlocal done
        if MEASURED in cell.metadata.get("tags", []):
            (watch.after if has_run else watch.before)(done)
        done += has_run

    shown = editions.outputs_of(chapter, root, on_cell, KERNEL_ARGUMENTS, around)
    notebook = new_notebook(cells=[new_code_cell(outputs=outputs) for outputs in shown],
                            metadata={WATCHED: to_metadata(watch)})
    _write(path, nbformat.writes(notebook, version=4))


def _add_notes(edition: NotebookNode, run: NotebookNode) -> None:
    """Say below measured outputs where they come from."""
    machine, moments = from_metadata(run.metadata[WATCHED])
    code = [cell for cell in edition.cells if cell.cell_type == "code"]
    for number, moment in moments.items():
        if code[number].outputs:
            code[number].outputs.append(
                new_output("display_data", {"text/html": note(moment, machine)}))


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".new",
                                     delete=False) as draft:
        draft.write(text)
    os.replace(draft.name, path)
