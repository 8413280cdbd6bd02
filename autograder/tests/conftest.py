"""Options of the autograder's tests, the small chapter that many of them work on, and the
sandbox that a class gets."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--seeds", type=int, default=1,
                     help="how many seeds the kill matrix is tried with")
    parser.addoption("--whole-class", action="store_true",
                     help="try what is promised about classes at its full size: 5,000 "
                          "submissions, 50 kills, 20 runs; hours")
    parser.addoption("--all-engines", action="store_true",
                     help="try every engine of accepted versions, with all tests of its parts")
    parser.addoption("--every-page", action="store_true",
                     help="look for barriers on every page of the book, not on a few; "
                          "some twenty minutes")
    parser.addoption("--run-all", action="store_true",
                     help="run every chapter's notebook as it is given, not the first alone")


@pytest.fixture(scope="module")         # no engine is loaded before --engine has said which one
def chapter():
    from autograder.chapters.chapter import read_chapter
    return read_chapter(HERE / "data" / "98_small.md")


@pytest.fixture(scope="module")
def learner(chapter):
    """The small chapter's notebook, in which nobody has worked yet."""
    from autograder.chapters import editions
    return editions.learner_edition(chapter, HERE.parents[1])


@pytest.fixture(scope="session")
def sandbox():
    """Bubblewrap. Without it what needs it is skipped; where `CI` is set, it fails."""
    from autograder.sandbox.bubblewrap import Bubblewrap
    found = Bubblewrap()
    if problem := found.problem():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
    return found
