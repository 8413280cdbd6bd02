"""Mutants that do the same as the reference, each with the reason why.

equivalent.toml:

    [[equivalent]]
    exercise = "sampling.top_k"
    key = "3f0c9a2b11"
    change = "min -> max"
    reason = "k above V is cut by the line below"

The key is made of the definition before and after the change, so an entry no longer fits when
the definition is edited.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Equivalent:
    """A mutant that nothing can tell from the reference. change: for who reads the list."""

    exercise: str
    key: str
    change: str
    reason: str


@cache
def equivalents(path: Path = PATH) -> dict[str, Equivalent]:
    """All that are listed, by their keys. Raises ValueError for an entry without a reason."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    found = {}
    for entry in entries:
        each = Equivalent(**entry)
        if not each.reason.strip() or each.key in found:
            raise ValueError(f"{path.name}: {each.key} has no reason, or is there twice")
        found[each.key] = each
    return found
