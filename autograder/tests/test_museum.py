"""A learner's test of an exhibit gets all its points only if it tries more than one example."""

import doctest
from functools import partial

import pytest

from autograder.checking import checks_of, exercises
from autograder.checking.running import run_checks
from autograder.variants.mutation import reference_subjects
from gearworks import museum

TESTS = [name for name in exercises() if name.endswith("_test")]


def passes_the_example(exhibit, function):
    """The test of somebody who wrote down the example of the exhibit's docstring."""
    names = vars(museum) | {exhibit.__name__: function}
    [example] = doctest.DocTestFinder().find(exhibit, exhibit.__name__, globs=names)
    example.globs = names
    assert not doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed


def test_every_chapter_has_an_exhibit_and_its_test():
    assert len(TESTS) == 10 and {name.partition(".")[0] for name in TESTS} == {"museum"}


@pytest.mark.parametrize("exercise", TESTS)
def test_one_example_is_no_test(exercise):
    """The public checks alone say so."""
    [exhibit] = reference_subjects(exercise.removesuffix("_test"))
    public = [check for check in checks_of(exercise) if check.public]
    outcomes = run_checks(public, [partial(passes_the_example, exhibit)], seed=1)
    lost = sum(outcome.points - outcome.earned for outcome in outcomes)
    assert lost >= sum(check.points for check in checks_of(exercise)) / 8
