"""Every exercise that has checks: the reference passes, a stub earns nothing, mutants die, accepted versions pass.

Two seconds, and half a second more for each exercise; `--seeds 5` tries five seeds in a row.
"""

import pytest

from autograder.checking import exercises
from autograder.kill_matrix import examine
from autograder.trials import Worker


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


@pytest.mark.parametrize("exercise", exercises())
def test_checks_tell_right_from_wrong(exercise, worker, request):
    assert examine(exercise, worker, request.config.getoption("--seeds")).complaints() == []
