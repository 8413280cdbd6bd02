"""What happens to a submission on its way: forty and more small accidents.

Each takes the bytes of an honest, solved notebook and gives what arrives, file by file, by the
paths under which a platform delivers it. `outcome` says what must come of it: the honest
grade, a part of it, or a status without a number. Attacks are elsewhere.
"""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

STEM = "98_small"
STUDENT = "ada"

# What must come of an accident.
HONEST = "graded"                       # every point of the honest notebook, nothing to repair
REPAIRED = "graded with repairs"        # every point, and a note about what was done
PART = "partial"                        # points for what survived, never more than the honest
REVIEW = "needs review"
UNREADABLE = "unreadable"

Files = dict[str, bytes]


@dataclass(frozen=True)
class Accident:
    """An accident. files: honest notebook -> path -> bytes, below a folder of submissions."""

    name: str
    outcome: str
    files: Callable[[bytes], Files]


ACCIDENTS: list[Accident] = []


def _own(data: bytes, file: str = f"{STEM}.ipynb") -> Files:
    return {f"{STUDENT}/ch98/{file}": data}


def to_file(outcome: str, file: str = f"{STEM}.ipynb"):
    """Register a function that changes the bytes of the notebook's file."""
    def register(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        ACCIDENTS.append(Accident(change.__name__, outcome,
                                  lambda data: _own(change(data), file)))
        return change
    return register


def to_cells(outcome: str):
    """Register a function that changes a notebook as JSON has it, in place."""
    def register(change: Callable[[dict], None]) -> Callable[[dict], None]:
        def files(data: bytes) -> Files:
            notebook = json.loads(data)
            change(notebook)
            return _own(json.dumps(notebook, indent=1).encode())
        ACCIDENTS.append(Accident(change.__name__, outcome, files))
        return change
    return register


def to_name(name: str, outcome: str, path: str) -> None:
    """Register another path for the notebook's file."""
    ACCIDENTS.append(Accident(name, outcome, lambda data: {path: data}))


def solutions(notebook: dict) -> list[dict]:
    """The cells that learners write."""
    return [cell for cell in notebook["cells"]
            if cell["metadata"].get("nbgrader", {}).get("solution")]


def checks(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"]
            if cell["metadata"].get("nbgrader", {}).get("grade")]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def demo(text: str) -> dict:
    """A cell that the learner added."""
    return {"cell_type": "code", "execution_count": None, "id": "mine", "metadata": {},
            "outputs": [], "source": text}


# --- cells: moved, lost, doubled --------------------------------------------------------------


@to_cells(HONEST)
def nothing_at_all(notebook):
    pass


@to_cells(HONEST)
def check_dragged_above_its_solution(notebook):
    cells = notebook["cells"]
    check = checks(notebook)[0]
    cells.remove(check)
    cells.insert(cells.index(solutions(notebook)[0]), check)


@to_cells(HONEST)
def cells_in_reverse(notebook):
    notebook["cells"].reverse()


@to_cells(HONEST)
def checks_deleted(notebook):
    for cell in checks(notebook):
        notebook["cells"].remove(cell)


@to_cells(HONEST)
def only_the_solutions_left(notebook):
    notebook["cells"] = solutions(notebook)


@to_cells(REPAIRED)
def solution_deleted_and_written_elsewhere(notebook):
    cell = solutions(notebook)[0]
    notebook["cells"].remove(cell)
    notebook["cells"].append(demo(source(cell)))


@to_cells(HONEST)
def check_cell_pasted_twice(notebook):
    check = checks(notebook)[0]
    notebook["cells"].insert(notebook["cells"].index(check), json.loads(json.dumps(check)))


@to_cells(REPAIRED)
def every_cell_twice(notebook):
    notebook["cells"] = [json.loads(json.dumps(cell))
                         for cell in notebook["cells"] for _ in range(2)]


@to_cells(REPAIRED)
def solution_split_in_two(notebook):
    cell = solutions(notebook)[0]
    lines = source(cell).splitlines(keepends=True)
    at = next(at for at in range(len(lines) - 1, 0, -1)
              if lines[at].startswith("    return"))
    cell["source"] = "".join(lines[:at])
    notebook["cells"].insert(notebook["cells"].index(cell) + 1, demo("".join(lines[at:])))


@to_cells(REPAIRED)
def solutions_merged_into_one_cell(notebook):
    first, *others = solutions(notebook)
    first["source"] = "\n\n".join(source(cell) for cell in [first, *others])
    for cell in others:
        notebook["cells"].remove(cell)


@to_cells(HONEST)
def setup_deleted(notebook):
    notebook["cells"] = [cell for cell in notebook["cells"]
                         if cell["cell_type"] != "code" or "nbgrader" in cell["metadata"]]


# --- cells: ids and metadata ------------------------------------------------------------------


@to_cells(REPAIRED)
def metadata_lost_from_one_pair(notebook):
    for cell in (solutions(notebook)[0], checks(notebook)[0]):
        cell["metadata"] = {}
        cell["id"] = f"new-{cell['id'][:5]}"


@to_cells(HONEST)
def metadata_lost_everywhere(notebook):
    for cell in notebook["cells"]:
        cell["metadata"] = {}


@to_cells(REPAIRED)
def metadata_and_ids_lost_everywhere(notebook):
    notebook["nbformat_minor"] = 0
    notebook["metadata"] = {}
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        del cell["id"]


@to_cells(HONEST)
def ids_kept_in_metadata_as_colab_does(notebook):
    notebook["nbformat_minor"] = 0
    for cell in notebook["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}


@to_file(HONEST)
def saved_and_run_by_vs_code(data):
    """Keys in the order of the alphabet, its own metadata, a new cell, outputs by line."""
    notebook = json.loads(data)
    notebook["metadata"] = {
        "kernelspec": {"display_name": ".venv", "language": "python", "name": "python3"},
        "language_info": {"codemirror_mode": {"name": "ipython", "version": 3},
                          "file_extension": ".py", "mimetype": "text/x-python",
                          "name": "python", "nbconvert_exporter": "python",
                          "pygments_lexer": "ipython3", "version": "3.12.4"}}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            cell["execution_count"] = number + 1
            cell["metadata"] |= {"vscode": {"languageId": "python"}}
            cell["outputs"] = [{"name": "stdout", "output_type": "stream",
                                "text": ["a\n", "b"]}]
        text = source(cell)
        cell["source"] = [f"{line}\n" for line in text.split("\n")[:-1]] + [
            text.split("\n")[-1]]
    notebook["cells"].append({"cell_type": "code", "execution_count": None, "id": "0f3a9c21",
                              "metadata": {}, "outputs": [], "source": []})
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


@to_cells(REPAIRED)
def grade_id_edited(notebook):
    cell = solutions(notebook)[0]
    cell["metadata"]["nbgrader"]["grade_id"] = "exercise-1"
    cell["id"] = "exercise-1"


@to_cells(HONEST)
def nbgrader_metadata_emptied(notebook):
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"] = {}


@to_cells(HONEST)
def nulls_for_what_is_missing(notebook):
    notebook["metadata"] = None
    notebook["cells"].append({"cell_type": None, "source": None, "metadata": None})


@to_cells(HONEST)
def sources_as_single_strings(notebook):
    for cell in notebook["cells"]:
        cell["source"] = source(cell)


# --- cells: what is written in them -----------------------------------------------------------


@to_cells(REPAIRED)
def solution_turned_into_markdown(notebook):
    cell = solutions(notebook)[0]
    cell["cell_type"] = "markdown"
    del cell["outputs"], cell["execution_count"]


@to_cells(REPAIRED)
def solution_turned_into_raw(notebook):
    cell = solutions(notebook)[-1]
    cell["cell_type"] = "raw"
    del cell["outputs"], cell["execution_count"]


@to_cells(HONEST)
def timed_by_a_magic(notebook):
    for cell in solutions(notebook):
        cell["source"] = "%%time\n" + source(cell)


@to_cells(HONEST)
def shell_line_above_the_solution(notebook):
    cell = solutions(notebook)[0]
    cell["source"] = "!pip install nothing-of-this-name\n%matplotlib inline\n" + source(cell)


@to_cells(HONEST)
def redefined_after_the_check(notebook):
    name = "parameter_count"
    notebook["cells"].append(demo(f"{name} = None"))


@to_cells(REPAIRED)
def solved_again_after_the_check(notebook):
    notebook["cells"].append(demo(source(solutions(notebook)[1])))


@to_cells(HONEST)
def waits_for_input(notebook):
    notebook["cells"].insert(1, demo("name = input('Who are you? ')"))
    cell = solutions(notebook)[0]
    cell["source"] = source(cell) + "\n\nanswer = input('Ready? ')"


@to_cells(HONEST)
def quits_in_a_cell(notebook):
    notebook["cells"].insert(1, demo("quit()"))
    cell = solutions(notebook)[0]
    cell["source"] = source(cell) + "\n\nquit()"


@to_cells(HONEST)
def endless_demo(notebook):
    notebook["cells"].insert(1, demo("while True:\n    pass"))


@to_cells(HONEST)
def tried_out_in_the_cell(notebook):
    for cell in solutions(notebook):
        cell["source"] = source(cell) + "\n\nprint('so far so good')\nassert False, 'later'"


@to_cells(PART)
def one_solution_is_no_python(notebook):
    cell = solutions(notebook)[1]
    cell["source"] = source(cell).replace("def ", "dfe ", 1)


@to_cells(HONEST)
def other_cells_are_no_python(notebook):
    notebook["cells"].insert(1, demo("this is not ( python"))


# --- the file --------------------------------------------------------------------------------


@to_file(HONEST)
def byte_order_mark(data):
    return b"\xef\xbb\xbf" + data


@to_file(REPAIRED)
def utf_16(data):
    return data.decode().encode("utf-16")


@to_file(REPAIRED)
def utf_16_without_mark(data):
    return data.decode().encode("utf-16-le")


@to_file(REPAIRED)
def latin_1(data):
    text = data.decode()
    at = text.index('"source": [') + len('"source": [')
    return (text[:at] + '"caf\xe9\\n",' + text[at:]).encode("latin-1", "ignore")


@to_file(HONEST)
def windows_line_ends(data):
    return data.replace(b"\\n", b"\\r\\n").replace(b"\n", b"\r\n")


@to_file(REPAIRED)
def null_bytes_between_cells(data):
    return data.replace(b"\n  {\n", b"\n\0\0  {\n")


@to_file(HONEST)
def null_bytes_in_sources(data):
    return data.replace(b"return ", b"return \\u0000")


@to_file(PART)
def cut_off_in_the_middle_of_a_solution(data):
    return data[:data.index(b"def parameter_count") + 400]


@to_file(PART)
def cut_off_after_half(data):
    return data[:len(data) // 2]


@to_file(REPAIRED)
def last_bytes_missing(data):
    return data[:-40]


@to_file(UNREADABLE)
def cut_off_at_once(data):
    return data[:30]


@to_file(REPAIRED)
def beginning_missing(data):
    return data[data.index(b'"cells"') + 9:]


@to_file(REPAIRED)
def written_twice_into_one_file(data):
    return data + data


@to_file(REPAIRED)
def marks_of_a_merge_conflict(data):
    at = data.index(b'\n  {\n', len(data) // 4)
    end = data.index(b'\n  {\n', at + 1)
    cell = data[at:end]
    return (data[:at] + b"\n<<<<<<< HEAD" + cell + b"\n=======" + cell + b"\n>>>>>>> theirs"
            + data[end:])


@to_file(HONEST)
def raw_line_breaks_in_strings(data):
    return data.replace(b'\\n",', b'\n",')


@to_file(HONEST)
def a_hundred_megabytes_of_outputs(data):
    notebook = json.loads(data)
    output = {"output_type": "stream", "name": "stdout", "text": "no end in sight\n" * 65536}
    solutions(notebook)[0]["outputs"] = [output] * 100
    return json.dumps(notebook).encode()


@to_file(REPAIRED)
def format_of_an_old_jupyter(data):
    notebook = json.loads(data)
    cells = []
    for cell in notebook["cells"]:
        old = {"cell_type": cell["cell_type"], "metadata": cell["metadata"]}
        key = "input" if cell["cell_type"] == "code" else "source"
        cells.append(old | {key: cell["source"]} | (
            {"language": "python", "outputs": []} if key == "input" else {}))
    return json.dumps({"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0,
                       "worksheets": [{"cells": cells, "metadata": {}}]}).encode()


@to_file(UNREADABLE)
def empty_notebook(data):
    return json.dumps(json.loads(data) | {"cells": []}).encode()


@to_file(UNREADABLE)
def empty_file(data):
    return b""


@to_file(UNREADABLE)
def an_error_page_of_the_platform(data):
    return (b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>"
            b"<p>The server is down.</p></body></html>")


@to_file(UNREADABLE)
def a_picture(data):
    return b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


@to_file(UNREADABLE)
def a_list_in_place_of_a_notebook(data):
    return b"[1, 2, 3]"


@to_file(REVIEW)
def some_other_notebook(data):
    return json.dumps(json.loads(data) | {"cells": [demo("print('my thesis')")]}).encode()


@to_file(REVIEW)
def notebook_of_another_chapter(data):
    text = data.decode()
    for name in ("run_request", "parameter_count", "forward_flops"):
        text = text.replace(name, f"other_{name[::-1]}")
    return text.encode()


@to_file(REPAIRED, f"{STEM}.py")
def a_script_of_its_code(data):
    cells = json.loads(data)["cells"]
    return "\n\n".join(f"# In[{number}]:\n\n{source(cell)}" if cell["cell_type"] == "code"
                       else "\n".join(f"# {line}" for line in source(cell).splitlines())
                       for number, cell in enumerate(cells)).encode()


def _zipped(files: Files) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for path, data in files.items():
            writer.writestr(path, data)
    return archive.getvalue()


@to_file(REPAIRED, f"{STEM}.zip")
def an_archive(data):
    return _zipped({f"homework/{STEM}.ipynb": data, "__MACOSX/homework/._98_small.ipynb": b"\0",
                    "homework/readme.txt": b"please be kind"})


@to_file(REPAIRED)
def an_archive_named_like_a_notebook(data):
    return _zipped({f"{STEM}.ipynb": data})


@to_file(UNREADABLE, f"{STEM}.zip")
def a_damaged_archive(data):
    return _zipped({f"{STEM}.ipynb": data})[:-200]


# --- where it lies, and what it is called -----------------------------------------------------

to_name("its_own_name", HONEST, f"{STUDENT}/ch98/{STEM}.ipynb")
to_name("renamed", REPAIRED, f"{STUDENT}/ch98/my homework (final) v2.ipynb")
to_name("downloaded_again", REPAIRED, f"{STUDENT}/ch98/{STEM} (1).ipynb")
to_name("handed_in_again", REPAIRED, f"{STUDENT}/ch98/{STEM}-1.ipynb")
to_name("copied_in_jupyter", REPAIRED, f"{STUDENT}/ch98/{STEM}-Copy1.ipynb")
to_name("ending_of_a_browser", REPAIRED, f"{STUDENT}/ch98/{STEM}.ipynb.txt")
to_name("ending_in_capitals", REPAIRED, f"{STUDENT}/ch98/{STEM.upper()}.IPYNB")
to_name("no_ending", REPAIRED, f"{STUDENT}/ch98/{STEM}")
to_name("a_folder_within", HONEST, f"{STUDENT}/ch98/chapters/{STEM}.ipynb")
to_name("a_folder_for_each_student", HONEST, f"{STUDENT}/{STEM}.ipynb")
to_name("student_before_the_chapter", HONEST, f"{STUDENT}_{STEM}.ipynb")
to_name("canvas", HONEST, f"{STUDENT}_31337_4711_{STEM}.ipynb")
to_name("canvas_late_and_again", HONEST, f"{STUDENT}_LATE_31337_4711_{STEM}-2.ipynb")
to_name("moodle_with_folders", HONEST, f"{STUDENT}_2718_assignsubmission_file_/{STEM}.ipynb")
to_name("moodle_without_folders", HONEST,
        f"{STUDENT}_2718_assignsubmission_file_{STEM}.ipynb")

ACCIDENTS.append(Accident("gradescope", HONEST, lambda data: {
    f"submission_99/{STEM}.ipynb": data,
    "submission_metadata.yml": (b"submission_99:\n  :submitters:\n  - :name: Ada Lovelace\n"
                                b"    :sid: ada\n    :email: ada@example.org\n"
                                b"  :created_at: 2026-03-01 12:00:00.000000000 Z\n")}))


def _beside(name: str, outcome: str, other: str, data: Callable[[bytes], bytes]) -> None:
    ACCIDENTS.append(Accident(name, outcome, lambda honest: _own(honest) | {
        f"{STUDENT}/ch98/{other}": data(honest)}))


def _untouched(data: bytes) -> bytes:
    notebook = json.loads(data)
    for cell in solutions(notebook):
        cell["source"] = "\n".join(f"# {line}" for line in source(cell).splitlines())
    return json.dumps(notebook).encode()


_beside("a_checkpoint_beside_it", HONEST, f".ipynb_checkpoints/{STEM}-checkpoint.ipynb",
        _untouched)
_beside("an_unsolved_copy_beside_it", HONEST, f"{STEM}-Copy1.ipynb", _untouched)
_beside("the_same_twice", REPAIRED, f"{STEM} (1).ipynb", lambda data: data)
_beside("a_picture_beside_it", HONEST, "diagram.png", a_picture)
_beside("a_broken_file_beside_it", HONEST, f"{STEM} (old).ipynb", lambda data: b"")
