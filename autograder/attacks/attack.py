"""An attack of the corpus: what a learner might hand in, and what it may be worth at most.

Each file of `corpus/` is a solution of `layers.rms_norm` that does something else besides. It
opens with what it tries, and with whether its answers are right: then it may earn what an
honest solution earns, else what a plain wrong one does. Names between @ stand for what is there
while it runs, such as the path of a gradebook. When it has got what it wanted it says so, by an
error whose text begins with @STOLEN@.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from autograder.judge.attempt import Attempt

EXERCISE = "layers.rms_norm"
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Attack:
    """One file of the corpus. is_right: whether its answers are, where it gives any."""

    name: str
    tries: str
    is_right: bool
    code: str

    def attempt(self, places: dict[str, str]) -> Attempt:
        """What is handed in. places: by the names between @, such as "GRADEBOOK"."""
        code = re.sub(r"@([A-Z]+)@", lambda found: places[found[1]], self.code)
        return Attempt(EXERCISE, code, "attack.ipynb")


def attacks() -> list[Attack]:
    """The whole corpus, by name. Raises ValueError for a file without its two lines."""
    return [_read(path) for path in sorted(CORPUS.glob("*.py"))]


def _read(path: Path) -> Attack:
    code = path.read_text(encoding="utf-8")
    head = re.match(r'"""(.+)\n\nanswers: (right|wrong)\n"""\n', code)
    if head is None:
        raise ValueError(f"{path.name}: it should open with what it tries and with its answers")
    return Attack(path.stem, head[1], head[2] == "right", code)
