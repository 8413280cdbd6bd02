"""What checking costs: processor time of right chapters, and messages to a worker.

A busy machine computes slower than a quiet one. So a chapter's time is told in the time of a
yardstick, a search of the same kind that runs between its exercises. Forty seconds.
"""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.checking import checks_of
from autograder.checking.differential import expect_agreement
from autograder.checking.levels import why_not_here
from autograder.checking.running import Status, collected_remarks, run_check, run_exercise
from autograder.generators.calls import calls
from autograder.judge.diagnosis import with_diagnosis
from autograder.judge.peer import Peer
from autograder.variants.mutation import load_mutant, mutants_of, reference_subjects

CHAPTERS = chapter_paths(Path(__file__).parents[2] / "book" / "chapters")
SECONDS = 8                 # of processor time, that the checks of a right chapter may take
WRONG_SECONDS = 10          # and those of a wrong exercise
YARDSTICK = 0.045           # that the yardstick takes where the checks take so long
NOISE = 1.3                 # by how much two measurements in one run may differ
MESSAGES = 100_000          # between a judge and the worker with a right chapter
MISSED = {"06_serving"}     # takes more messages: 157,000; who mends it takes it out here


def yardstick() -> float:
    """The processor time of a search that finds nothing."""
    start = time.process_time()
    expect_agreement(sorted, sorted, calls(st.lists(st.integers(0, 99), max_size=8)),
                     np.random.default_rng(1), name="sorted")
    return time.process_time() - start


def through_a_wire(subjects: list, heard: list[int]) -> list:
    """The subjects as a judge sees them, in this process. heard: the number of messages."""
    worker, judge = Peer(open_objects=True), Peer(open_objects=False)

    def between(other: Peer):
        def ask(request):
            heard[0] += 2
            return other.answer(request)
        return ask
    judge.ask, worker.ask = between(worker), between(judge)
    return [judge.take(worker.give(subject)) for subject in subjects]


# The dearest chapters in each run, all of them with --long.
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem,
                 marks=() if path.name[:2] in ("04", "05") else pytest.mark.long)
    for path in CHAPTERS])
def test_the_checks_of_a_right_chapter_are_cheap(path):
    spent, sticks, heard = 0.0, [yardstick()], [0]
    for exercise in read_chapter(path).exercises:
        if why_not_here(exercise.name):
            continue
        subjects = reference_subjects(exercise.name)
        for check in checks_of(exercise.name):
            start = time.process_time()
            with collected_remarks():
                outcome = run_check(check, subjects, seed=1)
            spent += time.process_time() - start
            assert outcome.status is Status.PASSED, outcome
            run_check(check, through_a_wire(subjects, heard), seed=1)
        sticks.append(yardstick())
    assert (heard[0] <= MESSAGES) == (path.stem not in MISSED), heard[0]
    assert spent / (sum(sticks) / len(sticks)) <= NOISE * SECONDS / YARDSTICK


@pytest.mark.parametrize("exercise", ["decoding.generate", "gguf.read_value",
                                      "tokenizer.IncrementalDetokenizer+decode"])
def test_the_checks_of_a_wrong_exercise_are_cheap(exercise):
    """With the search for a small input, and that for a known mistake."""
    subjects = load_mutant(exercise, mutants_of(exercise)[0])
    run_exercise(exercise, reference_subjects(exercise), seed=1)     # loads what it needs
    before, start = yardstick(), time.process_time()
    report = with_diagnosis(run_exercise(exercise, subjects, seed=1), subjects)
    spent = time.process_time() - start
    assert report.score < report.total
    assert spent / ((before + yardstick()) / 2) <= NOISE * WRONG_SECONDS / YARDSTICK
