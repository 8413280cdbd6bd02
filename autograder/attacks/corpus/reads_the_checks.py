"""Imports the checks, the mutants and the sources with the solutions' marks.

answers: right
"""

import glob
import importlib
import sys

import numpy as np

for name in ("autograder.checks.layers", "autograder.judge.judging", "autograder.judge.secret",
             "autograder.generators.arrays", "autograder.checking.running",
             "autograder.variants.mutation"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise RuntimeError(f"@STOLEN@ {name}")
for folder in {*sys.path, "/course", "@REPOSITORY@"}:
    for place in ("autograder/checks/*", "autograder/source/*", "autograder/mutants/*",
                  "autograder/accept/*", "book/chapters/*"):
        if found := glob.glob(f"{folder}/{place}"):
            raise RuntimeError(f"@STOLEN@ {found[:3]}")


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
