"""Accidents to submissions: each costs nothing, or has a status that says what was lost."""

import pytest
from accidents import ACCIDENTS, HONEST, PART, REPAIRED

from autograder.chapters import editions
from autograder.classes.grading import grade
from autograder.classes.submitted import find_submissions, notebooks_of
from autograder.judge.workers import Workers

SECRET = "of the tests"
pytestmark = pytest.mark.usefixtures("judged_once")


@pytest.fixture(scope="module")
def workers():
    with Workers() as workers:
        yield workers


@pytest.fixture(scope="module")
def honest(chapter, learner):
    return editions.to_text(editions.solve(learner, editions.solutions(chapter))).encode()


def delivered(folder, files):
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.mark.parametrize("accident", ACCIDENTS, ids=lambda accident: accident.name)
def test_an_accident_costs_nothing_or_says_what_is_lost(accident, honest, chapter, workers,
                                                        tmp_path):
    delivered(tmp_path, accident.files(honest))
    [submission] = find_submissions(tmp_path, [chapter])
    assert submission.student == "ada"
    record = grade(notebooks_of(submission), submission.chapter, [chapter], workers, SECRET)
    assert record.status == accident.outcome, record.notes
    full = sum(map(editions.exercise_points, chapter.exercises))
    earned = record.required + record.bonus
    if accident.outcome in (HONEST, REPAIRED):
        assert earned == full and record.points == record.required_max
    elif accident.outcome == PART:
        assert 0 < earned < full and record.points is not None
    else:
        assert record.points is None and earned == 0
    noted = record.notes + tuple(note for each in record.exercises for note in each.notes)
    assert bool(noted) == (accident.outcome != HONEST), noted
