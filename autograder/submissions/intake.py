"""Reads notebooks as they really come: edited, cut off, converted, without their metadata.

Nothing that a file holds raises an error here. What cannot be read is left out, and what was
repaired is noted, in words for the person whose notebook it is. Left out on purpose: which cell
solves which exercise (see `autograder.submissions.attempts`).
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autograder.submissions.archives import ArchiveError, is_archive, unpacked
from autograder.submissions.cells import Cell, problem_of
from gearworks.errors import GearworksError

CELL_START = re.compile(r'("nbgrader"\s*:\s*)?(\{)\s*"(?:cell_type|attachments)"\s*:')
SOURCE_START = re.compile(r'"(?:source|input)"\s*:\s*')
SCRIPT_CELL = re.compile(r"^# (?:In\[.*?\]:|%%.*)$", re.MULTILINE)     # nbconvert's, jupytext's
SCRIPT = ".py"
DAMAGED = "damaged or cut off"


@dataclass(frozen=True)
class Notebook:
    """What could be read of a notebook's file. notes: what was wrong, and what was done.

    is_damaged: whether the file was no whole JSON, so that cells may be lost.
    """

    name: str
    cells: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    is_damaged: bool = False


def notebook_paths(places: Iterable[Path]) -> list[Path]:
    """The notebooks in folders, by name, and the files that are named.

    A download may have given a file another ending (`.ipynb.txt`, `.ipynb.json`). Hidden files
    are passed over. Raises GearworksError for a place that is not there.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        if place.is_dir():
            found |= dict.fromkeys(path for path in sorted(place.iterdir())
                                   if path.is_file() and not path.name.startswith(".")
                                   and is_notebook_name(path.name))
        elif place.is_file():
            found[place] = None
        else:
            raise GearworksError(f"there is no {place}", "it is neither a folder nor a file",
                                 "name the folder of your notebooks")
    return list(found)


def read_notebooks(path: Path) -> list[Notebook]:
    """Read a file, whatever has happened to it: a notebook, or an archive of several.

    What it holds raises nothing.
    """
    try:
        return notebooks_in(path.name, path.read_bytes())
    except OSError as error:
        return [Notebook(path.name, notes=(f"cannot be read: {error.strerror or error}",))]


def notebooks_in(name: str, data: bytes) -> list[Notebook]:
    """The notebooks of a file with this name and content; one, unless it is an archive."""
    if not is_archive(data):
        notes: list[str] = []
        return [_notebook(name, _text(data, notes), notes)]
    try:
        held = list(unpacked(data))
    except ArchiveError as error:
        return [Notebook(name, notes=(f"an archive that {error}",))]
    chosen = [(path, content) for path, content in held if is_notebook_name(path)]
    chosen = chosen or [(path, content) for path, content in held if path.endswith(SCRIPT)]
    if not chosen:
        return [Notebook(name, notes=("an archive without a notebook",))]
    found = [notebooks_in(path.rpartition("/")[2], content)[0] for path, content in chosen]
    return [replace(each, notes=(f"in an archive, {name}", *each.notes)) for each in found]


def is_notebook_name(name: str) -> bool:
    """Whether a file is called as notebooks are, be it with another ending after that."""
    return ".ipynb" in name.lower()


def notebook_of(name: str, text: str) -> Notebook:
    """The notebook that a text of its file's format holds."""
    return _notebook(name, text, [])


def _notebook(name: str, text: str, notes: list[str]) -> Notebook:
    if name.endswith(SCRIPT):
        cells = _cells_of_script(text, notes)
    else:
        cells = _cells(text, notes)
    if cells and not name.endswith(SCRIPT) and not any(cell.ids for cell in cells):
        notes.append("its cells have lost their ids: exercises are found by what is defined")
    numbered = [replace(cell, number=number) for number, cell in enumerate(cells, start=1)]
    is_damaged = any(note.startswith(DAMAGED) for note in notes)
    return Notebook(name, tuple(_rejoined(numbered, notes)), tuple(notes), is_damaged)


def _text(data: bytes, notes: list[str]) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data[:200].count(0) > len(data[:200]) // 4:
        encodings = ["utf-16", "utf-16-le", "utf-16-be"]
    else:
        encodings = ["utf-8-sig", "cp1252"]
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "utf-16-le" and not text.lstrip().startswith("{"):
            continue
        if encoding != "utf-8-sig":
            notes.append(f"saved as {encoding}, not as UTF-8: read all the same")
        return text.removeprefix("\ufeff")
    notes.append("saved in an unknown encoding: what is not plain English is lost")
    return data.decode("utf-8", "replace")


def _cells(text: str, notes: list[str]) -> list[Cell]:
    if not text.strip():
        notes.append("empty")
        return []
    try:
        content = json.loads(text, strict=False)       # a raw line break in a string is no harm
    except (ValueError, RecursionError):
        cells = list(_salvaged(text))
        notes.append(f"{DAMAGED}: {len(cells)} cells could be read")
        return [_cell(cell) for cell in cells]
    if not isinstance(content, dict):
        notes.append("no notebook")
        return []
    cells = content.get("cells")
    if not isinstance(cells, list):                     # nbformat 3 and before: sheets of cells
        sheets = content.get("worksheets")
        cells = [cell for sheet in (sheets if isinstance(sheets, list) else [])
                 if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)
                 for cell in sheet["cells"]]
        if cells:
            notes.append("in the format of an old Jupyter: read all the same")
    if not cells:
        notes.append("without any cells")
    strange = sum(not isinstance(cell, dict) for cell in cells)
    if strange:
        notes.append(f"with {strange} entries that are no cells: left out")
    return [_cell(cell) for cell in cells if isinstance(cell, dict)]


def _cells_of_script(text: str, notes: list[str]) -> list[Cell]:
    """The cells of a Python file in a notebook's place; one where none is marked."""
    sources = list(filter(str.strip, SCRIPT_CELL.split(text)))
    notes.append("a Python file, not a notebook: read all the same" if sources else "empty")
    return [_cell({"source": source.strip("\n")}) for source in sources]


def _salvaged(text: str) -> Iterator[dict]:
    """The cells of a text that is no JSON as a whole, as far as each of them is."""
    decoder = json.JSONDecoder(strict=False)
    # The metadata of nbgrader begin as a cell does.
    starts = [found.start(2) for found in CELL_START.finditer(text) if not found[1]]
    end = 0
    for start, following in zip(starts, [*starts[1:], len(text)]):
        if start < end:                                   # within the cell before, in an output
            continue
        try:
            cell, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            source = SOURCE_START.search(text, start, following)
            if source is None:
                continue
            head = text[start:source.start()]
            ids = re.findall(r'"(?:grade_id|id)"\s*:\s*"([\w-]+)"', head)
            cell = {"cell_type": "markdown" if '"markdown"' in head else "code",
                    "source": _whole_lines(text, source.end(), decoder),
                    "metadata": {"nbgrader": {"grade_id": ids[-1]}} if ids else {}}
        if "source" in cell or "input" in cell:
            yield cell


def _whole_lines(text: str, at: int, decoder: json.JSONDecoder) -> list[str]:
    """The lines of a source, a string or a list of strings, up to the one that is cut off."""
    lines = []
    while (quote := re.compile(r'[\s,\[]*(?=")').match(text, at)) is not None:
        try:
            line, at = decoder.raw_decode(text, quote.end())
        except ValueError:
            break
        lines.append(line)
        if text[at:at + 100].lstrip()[:1] != ",":
            break
    return lines


def _cell(cell: dict) -> Cell:
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if not isinstance(source, str):
        source = ""
    source = source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    source = source.encode("utf-8", "replace").decode("utf-8")        # half of a surrogate pair
    metadata = cell.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    grading = metadata.get("nbgrader")
    grade_id = grading.get("grade_id") if isinstance(grading, dict) else None
    ids = [id for id in (grade_id, cell.get("id"), metadata.get("id"))
           if isinstance(id, str) and id]
    kind = cell.get("cell_type", "code")
    return Cell(0, kind if isinstance(kind, str) else "code", source, tuple(dict.fromkeys(ids)))


def _rejoined(cells: list[Cell], notes: list[str]) -> list[Cell]:
    """The cells; those that an editor split in the middle of a definition are joined again."""
    joined: list[Cell] = []
    for cell in cells:
        before = next((at for at in reversed(range(len(joined))) if joined[at].kind == "code"),
                      None)
        goes_on = cell.kind == "code" and re.match(r"\n*[ \t]+\S", cell.source)
        if before is not None and goes_on and problem_of(cell.source) is not None:
            whole = replace(joined[before],
                            source=f"{joined[before].source.rstrip()}\n{cell.source}",
                            ids=joined[before].ids or cell.ids)
            if problem_of(whole.source) is None:
                notes.append(
                    f"cell {cell.number} goes on with cell {whole.number}: read as one")
                joined[before] = whole
                continue
        if cell.kind != "code" or cell.source.strip():
            joined.append(cell)
    return joined
