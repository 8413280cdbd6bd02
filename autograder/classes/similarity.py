"""What a class wrote, laid out for the programs that look for copies: JPlag and Dolos.

Both get the learners' definitions without the rest of their notebooks. What everybody was given
is beside them, so that it counts for nothing, and so is the public reference, as one more
submission. What is the reference's but for names, comments and layout is noted. That is a hint
and never a verdict: the reference is public, and short answers are alike by themselves.

Sources: "How to use JPlag" in JPlag's documentation; "Adding metadata" in Dolos's.
"""

import ast
import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autograder.chapters.chapter import Chapter
from autograder.chapters.cuts import cuts_of
from autograder.classes.submitted import Submission, notebooks_of
from autograder.classes.table import folder_of
from autograder.submissions.attempts import State, chapter_of, find_components

FEWEST_NODES = 60           # of a syntax tree: shorter answers are alike by themselves
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
HINT = "as the public reference, but for names, comments and layout"


def export(submissions: Sequence[Submission], chapters: Sequence[Chapter],
           folder: Path) -> Iterator[str]:
    """Write a folder for each chapter that something was handed in for; yields what to do next.

    In it: submissions/STUDENT, base/stubs and public/reference for JPlag, dolos.zip, and
    hints.csv.
    """
    for chapter in chapters:
        own = [(submission, written) for submission in submissions
               if submission.chapter is chapter
               and (written := _written(submission, chapters))]
        if not own:
            continue
        cuts = cuts_of(chapter)
        reference = {name: cut.solution for name, cut in cuts.items()}
        stubs = {name: cut.stub for name, cut in cuts.items()}
        place = folder / chapter.assignment
        for submission, written in own:
            _write(place / "submissions" / folder_of(submission.student), written)
        _write(place / "base" / "stubs", stubs)
        _write(place / "public" / "reference", reference)
        (place / "dolos.zip").write_bytes(_dolos(own, reference, stubs))
        hints = [(submission.student, name, HINT) for submission, written in own
                 for name in alike(written, reference)]
        with open(place / "hints.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("student", "exercise", "hint"), *hints])
        yield f"{chapter.assignment}: {len(own)} submissions, {len(hints)} hints"
        yield (f"  java -jar jplag.jar -l python3 {place / 'submissions'} "
               f"--old {place / 'public'} --bc {place / 'base' / 'stubs'}")
        yield f"  dolos run -f web -l python {place / 'dolos.zip'}"


def alike(written: Mapping[str, str], reference: Mapping[str, str]) -> list[str]:
    """The names under which both have the same program, but for its names and words.

    >>> alike({"f": "def f(a):\\n    return " + "a + " * 30 + "1"},
    ...       {"f": "def g(b):\\n    'Sum.'\\n    return " + "b + " * 30 + "1"})
    ['f']
    """
    return [name for name, source in written.items()
            if (shape := _shape(source)) and shape == _shape(reference.get(name, ""))]


def _written(submission: Submission, chapters: Sequence[Chapter]) -> dict[str, str]:
    """What a student wrote, by the exercise's grade id."""
    own = [notebook for notebook in notebooks_of(submission)
           if chapter_of(notebook, chapters) is submission.chapter]
    found: dict[str, list[str]] = {}
    for part in find_components([submission.chapter], own):
        if part.state is not State.NOT_STARTED:
            found.setdefault(part.exercise.grade_id, []).extend(
                statement.text for statement in part.statements)
    return {name: "\n\n\n".join(texts) + "\n" for name, texts in found.items() if texts}


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8", newline="\n")


def _dolos(own: Sequence[tuple[Submission, Mapping[str, str]]], reference: Mapping[str, str],
           stubs: Mapping[str, str]) -> bytes:
    """An archive with a file for each student, and what Dolos wants to know about them.

    ignored: of the one file that holds what everybody was given.
    """
    rows = [("filename", "full_name", "label", "created_at", "ignored")]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("stubs.py", "\n\n".join(stubs.values()))
        rows.append(("stubs.py", "what was given", "", "", "true"))
        archive.writestr("reference.py", "\n\n".join(reference.values()))
        rows.append(("reference.py", "public reference", "reference", "", ""))
        for submission, written in own:
            name = f"{folder_of(submission.student)}.py"
            archive.writestr(f"students/{name}", "\n\n".join(written.values()))
            time = submission.submitted
            rows.append((f"students/{name}", submission.name or submission.student, "",
                         time.strftime("%Y-%m-%d %H:%M:%S %z") if time else "", ""))
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(rows)
        archive.writestr("info.csv", table.getvalue())
    return data.getvalue()


def _shape(source: str) -> str:
    """The definitions of a source without their names and words; "" if they are too short."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    tree.body = [node for node in tree.body if isinstance(node, DEFINITIONS)]
    numbers: dict[str, int] = {}

    def number(name: str) -> str:
        return f"n{numbers.setdefault(name, len(numbers))}"

    def strip(node: ast.AST) -> None:
        if isinstance(node, DEFINITIONS):
            node.name = number(node.name)
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.Name):
            node.id = number(node.id)
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = number(node.arg), None
        for child in ast.iter_child_nodes(node):
            strip(child)
    strip(tree)
    is_long = sum(1 for _ in ast.walk(tree)) >= FEWEST_NODES
    return ast.dump(tree) if is_long else ""
