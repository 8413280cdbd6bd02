"""Which exercises each chapter has, for who has the package and not the chapters' sources.

A notebook on Colab is such a place, and nbgrader in a course's folder. `autograder build` makes
outline.json, with the notebooks; texts and hints are left out.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from autograder.chapters.chapter import Cell, Chapter, Exercise

PATH = Path(__file__).with_name("outline.json")


def to_outline(chapters: Sequence[Chapter]) -> str:
    """The text of the file: the same for the same chapters, everywhere."""
    told = {chapter.stem: [_told(exercise) for exercise in chapter.exercises]
            for chapter in chapters}
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


@cache
def outline() -> tuple[Chapter, ...]:
    """The chapters with their exercises, and nothing else in them."""
    told = json.loads(PATH.read_text(encoding="utf-8"))
    return tuple(Chapter(Path(f"{stem}.md"), tuple(_cell(each) for each in exercises))
                 for stem, exercises in told.items())


def _told(exercise: Exercise) -> dict:
    fields = dataclasses.asdict(exercise)
    return {name: fields[name] for name in ("module", "names", "methods", "given", "whole",
                                            "optional", "exhibit") if fields[name]}


def _cell(told: dict) -> Cell:
    fields = {name: tuple(value) if isinstance(value, list) else value
              for name, value in told.items()}
    return Cell("code", "", 0, exercise=Exercise(**fields, minutes=0, level=0, hints=()))
