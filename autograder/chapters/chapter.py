"""Reads a chapter: a MyST notebook in which every exercise is an import from the reference.

A chapter's source runs as it stands. What makes it a course is in the metadata of its cells:

    ```{code-cell} python
    ---
    tags: [exercise]
    minutes: 35
    level: 2
    hints:
    - …
    - …
    - …
    ---
    from gearworks.attention import attention
    ```

This module holds what one file can tell. Whether the imported names exist, and what the
exercises are worth, is for `autograder.chapters.editions` to check.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.reference.names import components_of, home_of, short_name
from gearworks.errors import GearworksError

MEASURED = "measured"         # what the cell shows are times of this machine: the page says so
COURSE_TAGS = {"setup", "exercise", "museum", "predict", "finish", MEASURED}
BOOK_TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input", "remove-output",
             "remove-cell", "raises-exception", "full-width", "margin", "output_scroll"}
EXERCISE_KEYS = {"tags", "minutes", "level", "hints", "methods", "given", "whole", "optional",
                 "exhibit"}
CELL_KEYS = {"tags", "mystnb"}
ACCELERATORS = ("", "GPU")
HINTS = 3
LEVELS = (1, 2, 3)


class ChapterError(GearworksError, ValueError):
    """A chapter's source breaks a rule of the course; `what` names the file and the line."""


@dataclass(frozen=True)
class Exercise:
    """What the learner writes in one cell.

    module: of the reference, by its short name ("attention", "gguf"). names: one, or two that
    belong together. minutes: how long it takes. level: 1 to 3. methods: of a class, the ones
    that are written here; empty means all that are not private. The exercise is named after
    them and its cell continues the class, so that several exercises can write one; unless
    `whole`, when the cell holds the class. given: of a class that is continued, methods that
    the cell shows as they are. optional: (+) in the curriculum; its points are a bonus.
    exhibit: the name of the mutant that the learner starts from, instead of an empty body.
    line: in the chapter's source.
    """

    module: str
    names: tuple[str, ...]
    minutes: int
    level: int
    hints: tuple[str, ...]
    methods: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    whole: bool = False
    optional: bool = False
    exhibit: str = ""
    line: int = 0

    @property
    def is_part(self) -> bool:
        """Whether it is about some methods of a class, which its cell continues."""
        return bool(self.methods) and not self.whole

    @property
    def name(self) -> str:
        """The name under which its checks are registered.

        >>> Exercise("tokenizer", ("count_pairs", "merge_pair"), 20, 1, ()).name
        'tokenizer.count_pairs+merge_pair'
        >>> Exercise("kv_cache", ("BlockPool",), 20, 1, (), methods=("allocate", "free")).name
        'kv_cache.BlockPool.allocate+free'
        """
        own = f"{self.module}.{'+'.join(self.names)}"
        return f"{own}.{'+'.join(self.methods)}" if self.is_part else own

    @property
    def grade_id(self) -> str:
        """The id of its solution cell, for nbgrader and for Jupyter.

        >>> Exercise("tokenizer", ("count_pairs", "merge_pair"), 20, 1, ()).grade_id
        'tokenizer-count_pairs-and-merge_pair'
        """
        return self.name.replace(".", "-").replace("+", "-and-")

    @property
    def check_id(self) -> str:
        """The id of its check cell, for nbgrader and for Jupyter."""
        return f"check-{self.grade_id}"

    @property
    def components(self) -> tuple[str, ...]:
        """Its names as `module.name`, or its methods as `module.Class.method`."""
        return tuple(components_of(self.name))

    def shares_its_class_with(self, other: "Exercise") -> bool:
        """Whether both write methods of one class."""
        return (self.is_part and other.is_part
                and (self.module, self.names) == (other.module, other.names))


@dataclass(frozen=True)
class Cell:
    """One cell of a chapter.

    kind: "markdown" or "code". line: where it begins in the chapter's source, from 1.
    """

    kind: str
    source: str
    line: int
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    exercise: Exercise | None = None


@dataclass(frozen=True)
class Chapter:
    """A chapter's source. stem: the name of its file and notebook, such as "04_transformer".

    accelerator: what its notebook asks Colab for, "GPU" or nothing.
    """

    path: Path
    cells: tuple[Cell, ...]
    accelerator: str = ""

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def assignment(self) -> str:
        """What nbgrader calls it, such as "ch04"."""
        return f"ch{self.stem[:2]}"

    @property
    def exercises(self) -> tuple[Exercise, ...]:
        return tuple(cell.exercise for cell in self.cells if cell.exercise is not None)


def read_chapter(path: Path) -> Chapter:
    """Read a chapter and check all that the file alone can tell.

    Raises ChapterError, with file and line: a cell that cannot be parsed, an unknown tag or
    key, an exercise without three hints, one name in two exercises, an exercised name imported
    by any other cell, a directive in the text.
    """
    import nbformat            # half a second; the command line should answer --help without it
    from jupytext.myst import MystMetadataParsingError, myst_to_notebook

    path = Path(path)
    if not re.fullmatch(r"\d\d_\w+\.md", path.name):
        raise ChapterError(f"{path.name} cannot be a chapter",
                           "its name is not a number and a word",
                           "call it like 04_transformer.md")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChapterError(f"cannot read {path}", str(error),
                           "chapters are UTF-8 files in book/chapters") from None
    try:
        notebook = myst_to_notebook(text, add_source_map=True)
    except (MystMetadataParsingError, nbformat.ValidationError) as error:
        raise ChapterError(f"cannot read {path.name}", str(error).splitlines()[0],
                           "is the YAML at the top of that cell, or of the file, "
                           "right?") from None

    accelerator = notebook.metadata.get("accelerator", "")
    if accelerator not in ACCELERATORS:
        raise ChapterError(f"{path.name}: there is no accelerator {accelerator!r}",
                           "Colab would not know what to give",
                           "write accelerator: GPU in the head of the file, or nothing")
    lines = text.splitlines()
    cells = []
    for cell, line in zip(notebook.cells, notebook.metadata["source_map"], strict=True):
        if cell.cell_type == "markdown":     # counted from 0, and perhaps blank lines too early
            line = next(number for number, text in enumerate(lines[line:], start=line + 1)
                        if text.strip())
        cells.append(_read_cell(path, cell, line))
    chapter = Chapter(path, tuple(cells), accelerator)
    _check_setup(chapter)
    _check_names(chapter)
    return chapter


def chapter_paths(folder: Path) -> list[Path]:
    """The chapters in a folder, in order. Raises ChapterError when there are none."""
    paths = sorted(Path(folder).glob("[0-9][0-9]_*.md"))
    if not paths:
        raise ChapterError("there is nothing to build", f"{folder} holds no chapter",
                           "run this in a checkout of the course, or name the folder of the "
                           "chapters")
    return paths


def python_of(source: str) -> str:
    """A cell's source with IPython's magics made plain Python, so that `ast` can read it."""
    from IPython.core.inputtransformer2 import TransformerManager
    return TransformerManager().transform_cell(source)


def _read_cell(path: Path, cell: Any, line: int) -> Cell:
    place = f"{path.name}, line {line}"
    metadata = dict(cell.metadata)
    tags = metadata.get("tags", [])
    if not _is_texts(tags):
        raise ChapterError(f"{place}: the tags cannot be read", f"they are {tags!r}",
                           "write them as a list of names")
    unknown = [tag for tag in tags if tag not in COURSE_TAGS | BOOK_TAGS]
    if unknown:
        raise ChapterError(f"{place}: there is no tag {unknown[0]!r}",
                           "nothing gives it a meaning",
                           "the tags are " + ", ".join(sorted(COURSE_TAGS | BOOK_TAGS)))
    keys = EXERCISE_KEYS if "exercise" in tags else CELL_KEYS
    for key in metadata:
        if key not in keys:
            raise ChapterError(f"{place}: there is no key {key!r} for this cell",
                               "nothing gives it a meaning",
                               "the keys are " + ", ".join(sorted(keys)))
    exercise = None
    if cell.cell_type == "markdown":
        _check_markdown(place, cell.source)
    elif "exercise" in tags:
        exercise = _read_exercise(place, cell.source, metadata, line)
    return Cell(cell.cell_type, cell.source, line, tuple(tags), metadata, exercise)


def _check_markdown(place: str, source: str) -> None:
    # :::{note}; of a {diagram} the notebook gets a picture
    directive = re.search(r"^(?:`{3,}|~{3,}|:{3,})\{(?!diagram\})[\w-]+\}", source, re.M)
    role = re.search(r"(?<!`)\{[a-z][\w:-]*\}`[^`\n]+`", source)                 # {doc}`setup`
    found = directive or role
    if found:
        raise ChapterError(f"{place}: {found[0]} is no CommonMark",
                           "Jupyter and Colab would show it as it stands",
                           "chapters keep to CommonMark, $…$, tables and <details>")


def _read_exercise(place: str, source: str, metadata: Mapping[str, Any], line: int) -> Exercise:
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ChapterError(f"{place}: the exercise is no Python", str(error),
                           "import a name from gearworks") from None
    statement = body[0] if len(body) == 1 else None
    if not (isinstance(statement, ast.ImportFrom) and _is_of_engine(statement)
            and statement.level == 0 and len(statement.names) <= 2
            and not any(alias.asname or alias.name == "*" for alias in statement.names)):
        raise ChapterError(f"{place}: an exercise is one import",
                           f"this cell holds {source.strip()!r}",
                           "write `from gearworks.module import name`, with one name or two "
                           "that belong together")
    names = tuple(alias.name for alias in statement.names)

    def wrong(key: str, wanted: str, hint: str) -> ChapterError:
        return ChapterError(f"{place}: `{key}` of {'+'.join(names)} must be {wanted}",
                            f"it is {metadata.get(key)!r}", hint)

    minutes, level = metadata.get("minutes"), metadata.get("level")
    hints, methods = metadata.get("hints"), metadata.get("methods", [])
    given, whole = metadata.get("given", []), metadata.get("whole", False)
    optional, exhibit = metadata.get("optional", False), metadata.get("exhibit", "")
    if type(minutes) is not int or not 1 <= minutes <= 45:
        raise wrong("minutes", "a number from 1 to 45", "split an exercise that takes longer")
    if type(level) is not int or level not in LEVELS:
        raise wrong("level", "1, 2 or 3", "1 is for everybody, 3 takes patience")
    if not _is_texts(hints) or len(hints) != HINTS or "" in hints:
        raise wrong("hints", f"a list of {HINTS} texts",
                    "put a hint that holds a colon into quotes")
    if not _is_texts(methods):
        raise wrong("methods", "a list of names", "write methods: [allocate, free]")
    if methods and len(names) != 1:
        raise wrong("methods", "left out", "they are for an exercise on one class")
    if type(whole) is not bool or whole and not methods:
        raise wrong("whole", "true or false, beside `methods`",
                    "leave it out for an exercise that is named after its methods")
    if not _is_texts(given) or given and (whole or not methods):
        raise wrong("given", "a list of names, beside `methods` and without `whole`",
                    "write given: [__init__]")
    if type(optional) is not bool:
        raise wrong("optional", "true or false", "leave it out for a required exercise")
    if not isinstance(exhibit, str) or exhibit and "museum" not in metadata["tags"]:
        raise wrong("exhibit", "the name of a mutant, in a cell with the tag museum",
                    "write tags: [exercise, museum]")
    return Exercise(short_name(statement.module), names, minutes, level, tuple(hints),
                    tuple(methods), tuple(given), whole, optional, exhibit, line)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_of_engine(node: ast.ImportFrom) -> bool:
    return (node.module or "").startswith("gearworks.")


def _check_setup(chapter: Chapter) -> None:
    code = [cell for cell in chapter.cells if cell.kind == "code"]
    if ["setup" in cell.tags for cell in code] != [True] + [False] * (len(code) - 1):
        line = code[0].line if code else 1
        raise ChapterError(f"{chapter.path.name}, line {line}: a chapter's first code cell is "
                           "its setup", "it has no tag setup, or a later cell has it",
                           "gather the imports of the demos there")


def _check_names(chapter: Chapter) -> None:
    """No name is exercised twice, but for classes in parts.

    None is imported by another cell, which would replace the learner's own.
    """
    first: dict[str, Exercise] = {}
    for exercise in chapter.exercises:
        for name in [*exercise.names, *exercise.components]:
            before = first.setdefault(name, exercise)
            if before is not exercise and not (name in exercise.names
                                               and before.shares_its_class_with(exercise)):
                raise ChapterError(f"{chapter.path.name}, line {exercise.line}: {name} is "
                                   "exercised twice", f"line {before.line} has it already",
                                   "a chapter exercises a name once")
    for cell in chapter.cells:
        if cell.kind != "code" or cell.exercise is not None:
            continue
        place = f"{chapter.path.name}, line {cell.line}"
        try:
            tree = ast.parse(python_of(cell.source))
        except SyntaxError as error:
            if "raises-exception" in cell.tags:
                continue
            raise ChapterError(f"{place}: the cell is no Python", str(error),
                               "tag it raises-exception if that is its point") from None
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not _is_of_engine(node):
                continue
            for alias in node.names:
                exercise = first.get(alias.name)
                if alias.name == "*" or exercise and home_of(exercise.module) == node.module:
                    raise ChapterError(
                        f"{place}: this cell imports {alias.name} from {node.module}",
                        "it would run the reference where the learner's own gear is meant",
                        "use the name after its exercise, without importing it")
