"""No exercise's checks pass right code that spoils its caller's lists and arrays.

Two seconds for each exercise.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from autograder.checking.levels import why_not_here
from autograder.machine_mutants.runs import exercises_of
from autograder.processes.fork import CAN_FORK
from autograder.variants.spoiling import Worker, change_of, spoilers_of

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="spoilers are tried in forks")

EXERCISES = exercises_of(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


# Every fourth exercise in each run, all of them with --long.
@pytest.mark.parametrize("exercise", [
    pytest.param(each, id=each.name, marks=pytest.mark.long if at % 4 else ())
    for at, each in enumerate(EXERCISES)])
def test_who_spoils_an_argument_is_caught(exercise, worker):
    if missing := why_not_here(exercise.name):
        assert sys.platform != "linux" or "CI" not in os.environ, missing
        pytest.skip(missing)
    assert worker.examine(exercise.name, exercise.methods).survivors == []


def test_what_a_function_is_given_can_be_spoilt_and_what_it_writes_to_cannot():
    found = {str(spoiler) for spoiler in spoilers_of("kernels.cpu.int4_matvec")}
    assert {"int4_matvec: x emptied", "int4_matvec: scales grown"} <= found
    assert "int4_matvec: y emptied" not in found


@pytest.mark.parametrize("way, after", [
    ("emptied", []), ("grown", [[1], [2, 3], [2, 3]]), ("turned", [[2, 3], [1]]),
    ("inside", [[1, 1], [2, 3]])])
def test_each_way_changes_a_list(way, after):
    value = [[1], [2, 3]]
    change_of(value, way)()
    assert value == after


def test_what_would_stay_the_same_is_no_spoiler():
    locked = np.ones(3)
    locked.flags.writeable = False
    for value, way in (([], "emptied"), ([5, 5], "turned"), (np.zeros(3), "emptied"),
                       (locked, "grown"), ((1, 2), "grown"), ("text", "inside")):
        assert change_of(value, way) is None
