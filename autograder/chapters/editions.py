"""Makes the editions of a chapter from its source and the reference.

    learner  chapters/NN.ipynb                  stubs, no outputs; Colab opens what is committed
    source   autograder/source/chNN/NN.ipynb    solutions between marks
    book     in memory, for the book's page     stubs, with the outputs of the reference

What `nbgrader generate_assignment` makes of the source edition is the learner edition. In all
of them an exercise is three cells: a strip that says what it is worth, with its hints; the
solution cell; a locked check cell. Text cells are not locked, so that learners can write their
notes into them.
"""

import ast
import hashlib
import html
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlencode

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.chapters.chapter import (MEASURED, Chapter, ChapterError, Exercise,
                                         chapter_paths, python_of, read_chapter)
from autograder.chapters.cuts import cuts_of
from autograder.chapters.outline import PATH as OUTLINE
from autograder.chapters.outline import to_outline
from autograder.chapters.pictures import with_pictures
from autograder.checking import checks_of
from autograder.reference.cutting import filled
from autograder.reference.source import module_source
from gearworks import __version__
from gearworks.errors import GearworksError

REQUIRED_POINTS = 100
CELL_ID_LENGTH = 64                   # of nbformat 4.5
CELL_SECONDS = 600                    # for one cell of a page: far above what any needs
LEAK_LENGTH = 16                      # shorter lines of a solution say nothing
BONUS_TAG = "bonus"                   # on check cells of what is optional: exported apart
FUTURE = "from __future__ import annotations"
LEVELS = {1: "●○○", 2: "●●○", 3: "●●●"}
KERNEL = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python",
                         "name": "python3"}, "language_info": {"name": "python"}}

INSTALL = """\
# Installs the course where it is missing, as on Colab, and does nothing where it is there.
from importlib.util import find_spec
if not (find_spec("gearworks") and find_spec("autograder")):
    has_all = all(map(find_spec, ("torch", "transformers", "matplotlib", "numba")))
    extras = "" if has_all else "[truth,course]"
    %pip install --quiet "gearworks{{extras}} @ git+{homepage}\""""

PROGRESS = """\
import autograder
autograder.progress("{chapter}")"""

PLOT_IN_WORDS = "<details><summary>The plot in words</summary>\n\n{}\n\n</details>"

Progress = Callable[[Sequence[Path]], Iterable[Path]]
# The states of an exercise's cell: the fields of a Cut, and the chapter's own import.
State = Literal["stub", "solution", "marked", "import"]


def exercise_points(exercise: Exercise) -> int | float:
    """What an exercise is worth, by its checks. Raises LookupError when it has none."""
    points = sum(check.points for check in checks_of(exercise.name))
    return int(points) if points == int(points) else points


def check_chapter(chapter: Chapter) -> None:
    """Check a chapter against the reference and the checks.

    Raises ChapterError, with file and line: a name that the reference lacks or that cannot be
    cut, an exercise without checks, required exercises that are not worth 100 points together,
    a cell that takes a name which a solution before it imports.
    """
    _check_imports(chapter)
    for exercise in chapter.exercises:
        place = f"{chapter.path.name}, line {exercise.line}"
        try:
            exercise_points(exercise)
        except LookupError as error:
            raise ChapterError(
                f"{place}: {exercise.name} has no checks", str(error),
                f"write them in autograder/checks/{exercise.module}.py") from None
        if len(exercise.check_id) > CELL_ID_LENGTH:
            raise ChapterError(f"{place}: the name {exercise.name} is too long",
                               "it becomes the id of a cell, which has at most "
                               f"{CELL_ID_LENGTH} characters",
                               "exercise the two names one by one")
    required = {exercise.name: exercise_points(exercise) for exercise in chapter.exercises
                if not exercise.optional}
    if sum(required.values()) != REQUIRED_POINTS:
        raise ChapterError(f"{chapter.path.name}: the required exercises are worth "
                           f"{sum(required.values()):g} points, not {REQUIRED_POINTS}",
                           ", ".join(f"{name} {points:g}" for name, points in required.items())
                           or "there is none",
                           "change the points of checks in autograder/checks")


def _check_imports(chapter: Chapter) -> None:
    """No cell gives another meaning to a name that a solution above it imports: in a notebook,
    the learner's definition would use that from then on."""
    cuts = cuts_of(chapter)
    imported: dict[str, str] = {}
    for cell in chapter.cells:
        if cell.exercise is not None:
            stub = ast.parse(cuts[cell.exercise.grade_id].stub)
            imported |= {alias.asname or alias.name.partition(".")[0]: cell.exercise.name
                         for node in stub.body if isinstance(node, ast.Import | ast.ImportFrom)
                         for alias in node.names}
        elif cell.kind == "code" and "raises-exception" not in cell.tags:
            for name in sorted(_given_names(ast.parse(python_of(cell.source)))
                               & imported.keys()):
                raise ChapterError(
                    f"{chapter.path.name}, line {cell.line}: this cell gives {name} another "
                    "meaning", f"the exercise {imported[name]} imports it, and what a learner "
                    "wrote there would use this one", "take another name")


def _given_names(tree: ast.AST) -> set[str]:
    """The names that a cell's code assigns or defines, outside of functions and classes."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp
                            | ast.GeneratorExp):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            names |= _given_names(node)
    return names


def learner_edition(chapter: Chapter, root: Path) -> NotebookNode:
    """The notebook that learners open.

    root: the repository, where pictures and the course's address are found. Raises ChapterError
    for a picture that is not there.
    """
    from nbgrader.utils import compute_checksum        # so that the two agree; slow to import

    notebook = _notebook(chapter, root, "stub")
    for cell in notebook.cells:
        grading = cell.metadata.get("nbgrader")
        if grading is not None:
            cell.metadata["deletable"] = False
            if grading["locked"]:
                cell.metadata["editable"] = False
            grading["checksum"] = compute_checksum(cell)
            grading["cell_type"] = cell.cell_type
    return notebook


def source_edition(chapter: Chapter, root: Path) -> NotebookNode:
    """What `nbgrader generate_assignment` starts from. For the rest, see `learner_edition`."""
    return _notebook(chapter, root, "marked")


def book_edition(chapter: Chapter, root: Path,
                 outputs: Sequence[Sequence[NotebookNode]]) -> NotebookNode:
    """The notebook of a page of the book: its text, stubs, and the outputs of the reference.

    outputs: of each code cell, as `outputs_of` gives them. Raises ChapterError when one of them
    shows a line of a solution.
    """
    notebook = _notebook(chapter, root, "import", install=False)
    cuts = cuts_of(chapter)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    secret = solution_lines(chapter)
    for cell, shown in zip(code, outputs, strict=True):
        cell.outputs = list(shown)
        said = {line.strip() for output in shown for text in _texts(output)
                for line in html.unescape(text).splitlines()}
        if secret & said:
            raise ChapterError(f"{chapter.path.name}: an output shows a solution",
                               f"the cell that begins {cell.source[:60]!r} prints "
                               f"{min(secret & said)!r}", "let it show something else")
        if cell.id in cuts:
            cell.source = cuts[cell.id].stub
        if cell.metadata.get("nbgrader", {}).get("locked"):
            # the number that nbgrader reads; the report above it says it in words
            cell.outputs = [output for output in cell.outputs
                            if output.output_type != "execute_result"]
    return notebook


def outputs_of(chapter: Chapter, root: Path,
               on_cell: Callable[[int, int], None] | None = None,
               kernel_arguments: Sequence[str] = (),
               around: Callable[[NotebookNode, bool], None] | None = None,
               ) -> list[list[NotebookNode]]:
    """Run a chapter with the reference; returns what each code cell shows.

    It is executed in `chapters/`. on_cell: called after each code cell with how many are done
    and how many there are. kernel_arguments: of the kernel that runs it, such as settings of
    its plots. around: called before and after each code cell, with the cell and whether it has
    run. Raises ChapterError when a cell fails.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = _notebook(chapter, root, "import", install=False)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    done = Counter()

    def begin(cell: NotebookNode, cell_index: int) -> None:
        if around is not None and cell.cell_type == "code":
            around(cell, False)

    def count(cell: NotebookNode, cell_index: int, **_) -> None:
        done[cell.cell_type] += 1
        if around is not None and cell.cell_type == "code":
            around(cell, True)
        if on_cell is not None:
            on_cell(done["code"], cells)

    # A traceback of the default mode shows lines of the reference, which are the solution.
    arguments = ["--InteractiveShell.xmode=Minimal", *kernel_arguments]
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3",
                            record_timing=False,
                            coalesce_streams=True,        # streamed text is one block, not many
                            resources={"metadata": {"path": str(root / "chapters")}},
                            extra_arguments=arguments, on_cell_execute=begin,
                            on_cell_executed=count)
    try:
        client.execute(env=os.environ | {"AUTOGRADER_SUBJECT": "reference"})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        failed = notebook.cells[_failed_cell(notebook)]
        raise ChapterError(f"{chapter.path.name} does not run",
                           f"in the cell that begins {failed.source[:60]!r}: {error}",
                           "run the chapter's source with the reference") from None

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for output in (output for cell in code for output in cell.outputs):
        if output.output_type == "execute_result":
            output.execution_count = None
    return [cell.outputs for cell in code]


def solutions(chapter: Chapter) -> dict[str, str]:
    """The solved cells by grade id, as the reference solves them."""
    return {grade_id: cut.solution for grade_id, cut in cuts_of(chapter).items()}


def solve(notebook: NotebookNode, solved: Mapping[str, str]) -> NotebookNode:
    """A copy of a learner's notebook, solved. solved: grade id -> source of its cell."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        grading = cell.metadata.get("nbgrader", {})
        if grading.get("solution") and grading["grade_id"] in solved:
            cell.source = solved[grading["grade_id"]]
    return copy


def solution_lines(chapter: Chapter) -> set[str]:
    """The lines, stripped, of a chapter's solutions that stand nowhere in what is given."""
    cuts = cuts_of(chapter).values()
    given = {line.strip()
             for text in [*(cut.stub for cut in cuts), *(cell.source for cell in chapter.cells)]
             for line in text.splitlines()}
    return {stripped for cut in cuts for line in cut.solution.splitlines()
            if len(stripped := line.strip()) >= LEAK_LENGTH and stripped not in given}


def to_text(notebook: NotebookNode) -> str:
    """A notebook as the text of its file: the same for the same notebook, everywhere."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def homepage(root: Path) -> str:
    """The address of the course's repository, from pyproject.toml."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["urls"]["Homepage"]


def editions(root: Path, progress: Progress = iter) -> Iterator[tuple[Path, str]]:
    """The files that are made from the chapters of a repository: path and text.

    progress: what goes through the chapters, such as a progress bar. Raises ChapterError.
    """
    chapters = []
    for path in progress(chapter_paths(root / "book" / "chapters")):
        chapter = read_chapter(path)
        check_chapter(chapter)
        chapters.append(chapter)
        yield learner_path(root, chapter), to_text(learner_edition(chapter, root))
        yield source_path(root / "autograder", chapter), to_text(source_edition(chapter, root))
    yield outline_path(root), to_outline(chapters)


def build(root: Path, force: bool = False, progress: Progress = iter) -> list[Path]:
    """Write every edition that differs from its file, all or none; returns what was written.

    Raises ChapterError, and, unless `force`, GearworksError when a learner notebook has been
    run: it may hold somebody's work.
    """
    changed = {path: text for path, text in editions(root, progress) if _read(path) != text}
    for path in changed:
        if not force and path.parent.name == "chapters" and _has_been_run(path):
            raise GearworksError(f"{path} would be lost",
                                 "somebody has run it, and may have written solutions into it",
                                 "move it away, or give --force")
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return list(changed)


def drift(root: Path, progress: Progress = iter) -> dict[Path, str]:
    """What is not as `build` makes it, of what is kept with the chapters, and why.

    That is learner notebooks and the outline. Raises ChapterError.
    """
    wanted = {path: text for path, text in editions(root, progress)
              if path.parent == root / "chapters" or path == outline_path(root)}
    wrong = {path: "is not there" if _read(path) is None else "is out of date"
             for path, text in wanted.items() if _read(path) != text}
    strays = {path: "has no chapter" for path in sorted((root / "chapters").glob("*.ipynb"))
              if path not in wanted}
    return wrong | strays


def learner_path(root: Path, chapter: Chapter) -> Path:
    """Where a chapter's learner edition lies in a repository."""
    return root / "chapters" / f"{chapter.stem}.ipynb"


def outline_path(root: Path) -> Path:
    """Where the outline of a repository's chapters lies."""
    return root / "autograder" / "chapters" / OUTLINE.name


def source_path(course: Path, chapter: Chapter) -> Path:
    """Where a chapter's source edition lies in a course of nbgrader."""
    return course / "source" / chapter.assignment / f"{chapter.stem}.ipynb"


def _notebook(chapter: Chapter, root: Path, state: State,
              install: bool = True) -> NotebookNode:
    cuts = cuts_of(chapter)
    cells: list[NotebookNode] = []
    seen: Counter[str] = Counter()
    delayed = any(module_source(exercise.module).delays_annotations
                  for exercise in chapter.exercises)
    for cell in chapter.cells:
        if cell.exercise is not None:
            source = (cell.source if state == "import"
                      else getattr(cuts[cell.exercise.grade_id], state))
            report = _report_address(cell.exercise, chapter, root)
            cells += _exercise_cells(cell.exercise, source, cell.tags, report)
            continue
        digest = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        if cell.kind == "markdown":
            place = f"{chapter.path.name}, line {cell.line}"
            source = (cell.source if state == "import"
                      else with_pictures(place, cell.source, root / "chapters"))
            cells.append(new_markdown_cell(source, id=id, metadata=_metadata(cell.tags)))
            continue
        if "setup" in cell.tags and install:
            cells.append(new_code_cell(INSTALL.format(homepage=homepage(root)), id="install"))
        source = cell.source
        if "setup" in cell.tags and delayed and FUTURE not in source:
            # IPython keeps it for all later cells; in a solution it would have to come first.
            source = f"{FUTURE}\n{source}"
        own = [tag for tag in cell.tags if tag != MEASURED or state == "import"]
        cells.append(new_code_cell(source, id=id, metadata=_metadata(own)))
        if "setup" in cell.tags and install:
            cells.append(new_code_cell(PROGRESS.format(chapter=chapter.stem), id="progress",
                                       metadata={"jupyter": {"source_hidden": True}}))
        description = ((cell.metadata.get("mystnb") or {}).get("image") or {}).get("alt")
        if description and state != "import":      # the book's page has it, an editor has not
            cells.append(new_markdown_cell(PLOT_IN_WORDS.format(description),
                                           id=f"{id}-in-words"))
    asked = {"accelerator": chapter.accelerator} if chapter.accelerator else {}
    return new_notebook(cells=cells, metadata=KERNEL | asked)


def _metadata(tags: Collection[str]) -> dict:
    shown = [tag for tag in tags if tag != "exercise"]
    metadata: dict = {"tags": shown} if shown else {}
    if "hide-input" in tags:
        metadata["jupyter"] = {"source_hidden": True}
    return metadata


def _report_address(exercise: Exercise, chapter: Chapter, root: Path) -> str:
    """Where a problem with an exercise is reported, with what we would ask first."""
    words = (f"Chapter {chapter.stem}, exercise {exercise.name}, Gearworks {__version__}.\n\n"
             "What did you do, what did you expect, and what happened?\n")
    return f"{homepage(root)}/issues/new?" + urlencode(
        {"title": f"{exercise.name}: ", "body": words}, quote_via=quote)


def _exercise_cells(exercise: Exercise, source: str, tags: Collection[str],
                    report: str) -> list[NotebookNode]:
    points = exercise_points(exercise)
    both = {"schema_version": 3, "task": False}
    written = both | {"grade": False, "grade_id": exercise.grade_id, "locked": False,
                      "solution": True}
    graded = both | {"grade": True, "grade_id": exercise.check_id, "locked": True,
                     "points": points, "solution": False}
    call = filled("check(", [f'"{exercise.name}"', *exercise.names], ")")
    bonus = [BONUS_TAG] if exercise.optional else []
    return [new_markdown_cell(_strip(exercise, points, report),
                              id=f"about-{exercise.grade_id}"),
            new_code_cell(source, id=exercise.grade_id,
                          metadata=_metadata(tags) | {"nbgrader": written}),
            new_code_cell(f"from autograder import check\n{call}", id=exercise.check_id,
                          metadata=_metadata(bonus) | {"nbgrader": graded})]


def _strip(exercise: Exercise, points: int | float, report: str) -> str:
    """What an exercise is worth and takes, and its hints, one fold each.
    report: the address for problems with it."""
    kind = "Exhibit" if exercise.exhibit else "Exercise"
    first, *others = exercise.components
    names = " and ".join(f"`{name}`" for name in
                         (first, *(other.rpartition(".")[2] for other in others)))
    worth = f"{points:g} point{'' if points == 1 else 's'}"
    if exercise.optional:
        worth = f"optional (+): {worth} as a bonus"
    hints = [f"<details>\n<summary>Hint {number} of {len(exercise.hints)}</summary>\n\n{hint}\n"
             "\n</details>" for number, hint in enumerate(exercise.hints, start=1)]
    return "\n\n".join([f"> **{kind}** {names} · {worth} · about {exercise.minutes} minutes · "
                        f"level {exercise.level} of 3 {LEVELS[exercise.level]} · "
                        f"[report a problem]({report})", *hints])


def _read(path: Path) -> str | None:
    """A file's text with this checkout's line ends made \\n; None if there is no such file."""
    return path.read_text(encoding="utf-8") if path.exists() else None


def _has_been_run(path: Path) -> bool:
    text = _read(path)
    if text is None:
        return False
    try:
        cells = nbformat.reads(text, as_version=4).cells
    except Exception:                 # whatever it is, it is not a notebook that was built here
        return True
    return any(cell.cell_type == "code" and (cell.outputs or cell.execution_count)
               for cell in cells)


def _failed_cell(notebook: NotebookNode) -> int:
    executed = [index for index, cell in enumerate(notebook.cells)
                if cell.cell_type == "code" and (cell.execution_count or cell.outputs)]
    return executed[-1] if executed else 0


def _texts(output: NotebookNode) -> Iterator[str]:
    yield output.get("text", "")
    yield "\n".join(output.get("traceback", []))
    for value in output.get("data", {}).values():
        if isinstance(value, str):
            yield value
