"""Engines of strangers: every component in a right version that is not the reference's.

Each passes the reference's tests, where they say what every right engine does, or else a check
or a test is wrong. The versions are drawn by the engine's number, so that a small number of
engines holds all of them.
"""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autograder.chapters.chapter import Chapter, Exercise
from autograder.chapters.cuts import cuts_of
from autograder.reference.source import Definition
from autograder.submissions.attempts import find_components
from autograder.submissions.intake import Notebook, notebook_of
from autograder.submissions.overlay import Gear, assemble
from autograder.variants.mutation import Accepted, accepted_of


def assemble_accepted(chapters: Sequence[Chapter], number: int, folder: Path) -> list[Gear]:
    """Make the engine of this number in a folder; returns its parts, as `assemble` does."""
    notebooks = [accepted_notebook(chapter, number) for chapter in chapters]
    return assemble(find_components(chapters, notebooks), folder)


def accepted_notebook(chapter: Chapter, number: int) -> Notebook:
    """A chapter's notebook that somebody solved with accepted versions alone."""
    cuts = cuts_of(chapter)
    cells = [{"cell_type": "code", "id": exercise.grade_id, "metadata": {}, "outputs": [],
              "execution_count": None,
              "source": _solved(exercise, cuts[exercise.grade_id].solution, number)}
             for exercise in chapter.exercises]
    return notebook_of(f"{chapter.stem}.ipynb", json.dumps({"cells": cells, "metadata": {},
                                                            "nbformat": 4}))


def version_of(exercise: Exercise, number: int) -> Accepted:
    """The accepted version that an engine has of an exercise.

    As many numbers as it has versions, from 0 on, have each of them once; and so the next ones.
    """
    versions = accepted_of(exercise.name)
    round, at = divmod(number, len(versions))
    seed = [round, *exercise.name.encode("utf-8")]
    return versions[np.random.default_rng(seed).permutation(len(versions))[at]]


def engines_for_all(chapters: Sequence[Chapter]) -> int:
    """How many engines, counted from number 0, hold every accepted version between them."""
    return max(len(accepted_of(exercise.name))
               for chapter in chapters for exercise in chapter.exercises)


def _solved(exercise: Exercise, solution: str, number: int) -> str:
    """The text of an exercise's cell: an accepted version.

    What it leaves to the reference, a class that it goes on with included, comes before it.
    """
    text = version_of(exercise, number).path.read_text(encoding="utf-8")
    if exercise.is_part:
        return text
    own = {node.name for node in ast.parse(text).body if isinstance(node, Definition)}
    if not own.issuperset(exercise.names):
        return f"{solution}\n\n\n{text}"
    for name in exercise.names:
        continued = re.sub(rf"(class {name})\(\w+\.{name}\)", rf"\1({name}Given)", text)
        if continued != text:
            given = re.sub(rf"class {name}\b", f"class {name}Given", solution)
            text = f"{given}\n\n\n{continued}"
    return text
