"""Pages that a grader writes: each one file, without scripts, that needs nothing else.

Whatever a template is given is escaped: it may be a learner's text.
"""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page(name: str, **values: Any) -> str:
    """The page of a template in this folder."""
    return _environment().get_template(f"{name}.html").render(**values)


def number(value: float | None) -> str:
    """Points as a page shows them; "none" where there is no number.

    >>> number(13.0), number(6.666667), number(None)
    ('13', '6.67', 'none')
    """
    return "none" if value is None else f"{round(value, 2):g}"


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
