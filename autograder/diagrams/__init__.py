"""Diagrams of the chapters: still pictures of a shape, a layout or a flow, drawn by code.

A chapter names one in a directive, {diagram} layer. The book shows it in the page, a notebook
as a picture. Whatever numbers stand in it are computed by the engine.
"""

from autograder.diagrams import attention, layouts, model, speculation
from autograder.diagrams.canvas import Canvas

DIAGRAMS = {name.replace("_", "-"): draw
            for room in (attention, layouts, model, speculation)
            for name, draw in vars(room).items()
            if callable(draw) and getattr(draw, "__module__", "") == room.__name__
            and not name.startswith("_")}


def draw(name: str) -> Canvas:
    """The diagram of this name. Raises LookupError when there is none."""
    if name not in DIAGRAMS:
        raise LookupError(f"there is no diagram {name!r}, but {', '.join(sorted(DIAGRAMS))}")
    return DIAGRAMS[name]()
