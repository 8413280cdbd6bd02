"""Every exercise: the reference passes, a stub earns nothing, mutants die, accepted ones pass.

And each mutant dies by the check that the instructors' guide names, in whatever process it is
tried. Two seconds, and half a second for each exercise; `--seeds 20` tries twenty seeds, and
whether a mutant's points are the same with each of them, which takes hours for all.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from autograder.checking import checks_of, exercises
from autograder.checking.levels import why_not_here
from autograder.variants.kill_matrix import examine, scores_by_seed
from autograder.variants.trials import Worker

PUBLISHED = Path(__file__).parents[2] / "book" / "kill_matrix.json"


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def published() -> dict[str, dict]:
    return {row["exercise"]: row
            for row in json.loads(PUBLISHED.read_text(encoding="utf-8"))["exercises"]}


def test_public_checks_carry_the_weight(published):
    """Whoever passes the public checks keeps the points: they kill 95 % of the mutants."""
    killers = {(exercise, mutant): {*checks} for exercise, row in published.items()
               for mutant, checks in row["killed"].items()}
    public = {exercise: {check.name for check in checks_of(exercise) if check.public}
              for exercise in published}
    by_public = [checks & public[exercise] for (exercise, _), checks in killers.items()]
    assert sum(map(bool, by_public)) >= 0.95 * len(by_public)


@pytest.mark.parametrize("exercise", exercises())
def test_a_mutant_earns_the_same_points_in_every_course(exercise, worker, request):
    if (seeds := request.config.getoption("--seeds")) == 1:
        pytest.skip("--seeds 20 asks for it")
    if missing := why_not_here(exercise):
        pytest.skip(missing)
    scores = scores_by_seed(exercise, worker, seeds)
    assert {name: each for name, each in scores.items() if len({*each}) > 1} == {}


# Every third exercise in each run, all of them with --long.
@pytest.mark.parametrize("exercise", [
    pytest.param(name, marks=pytest.mark.long) if at % 3 else name
    for at, name in enumerate(exercises())])
def test_checks_tell_right_from_wrong(exercise, worker, published, request):
    if missing := why_not_here(exercise):
        # where tests must run, Linux has all that exercises need
        assert sys.platform != "linux" or "CI" not in os.environ, missing
        pytest.skip(missing)
    row = examine(exercise, worker, request.config.getoption("--seeds"))
    assert row.complaints() == []
    killers = {mutant: checks[:1] for mutant, checks in row.killed.items()}  # by the first seed
    renew = "autograder mutants --json > book/kill_matrix.json"
    assert killers == published[exercise]["killed"], renew
