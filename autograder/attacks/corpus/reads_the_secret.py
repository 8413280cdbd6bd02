"""Looks for the course's secret: in the environment, in homes, in folders above.

answers: right
"""

import os
import pathlib

import numpy as np

if any("@SECRET@" in value for value in os.environ.values()):
    raise RuntimeError("@STOLEN@ the secret, from the environment")
places = [pathlib.Path("@FOLDER@"), pathlib.Path.cwd(), pathlib.Path.home(),
          pathlib.Path("/root"), pathlib.Path("/home")]
for place in places:
    for name in ("autograder_secret.txt", ".ssh", ".netrc", ".bash_history", ".aws"):
        if (place / name).exists():
            raise RuntimeError(f"@STOLEN@ {place / name}")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
