"""Where graded inputs come from: the course's secret, its version, and the exercise.

So a regrade draws the same inputs again, and nobody who has the course's text can know them.
"""

import hashlib
import hmac
import os
import secrets
from importlib.metadata import version
from pathlib import Path

VARIABLE = "AUTOGRADER_SECRET"
SECRETS = (VARIABLE,)           # what no process of a learner's finds in its environment
FILE = "autograder_secret.txt"


def course_secret(folder: Path) -> str:
    """A course's secret: AUTOGRADER_SECRET, or what its folder keeps in a file.

    The file is made where there is none. Raises OSError when it can be neither read nor made.
    """
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    path = folder / FILE
    try:
        with open(path, "x", encoding="utf-8",
                  opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(32) + "\n")
    except FileExistsError:
        pass
    return path.read_text(encoding="utf-8").strip()


def graded_seed(secret: str, exercise: str) -> int:
    """The seed of an exercise's checks when it is graded."""
    told = f"{version('gearworks')}\n{exercise}".encode()
    return int.from_bytes(hmac.digest(secret.encode(), told, hashlib.sha256)[:8], "big")
