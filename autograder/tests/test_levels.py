"""Where code ran is said in the report, and what cannot run here is not skipped silently."""

import sys

import pytest

from autograder import notebook
from autograder.checking.levels import level_of, why_not_here
from autograder.checking.report import markup, text
from autograder.checking.running import run_exercise
from autograder.variants.mutation import reference_subjects

SIMULATED = "kernels.flash.online_softmax"
TRITON = "kernels.triton.paged_decode"


def test_the_simulator_is_named_under_its_checks():
    report = run_exercise(SIMULATED, reference_subjects(SIMULATED), seed=1)
    assert report.score == report.total
    assert "Level: simulator. NumPy stands for a GPU's fast memory" in text(report)
    assert "Level: simulator." in markup(report)


def test_what_runs_everywhere_has_no_level():
    report = run_exercise("layers.softmax", reference_subjects("layers.softmax"), seed=1)
    assert level_of("layers.softmax") == why_not_here("layers.softmax") == report.level == ""
    assert "Level" not in text(report)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton exists for Linux only")
def test_triton_says_where_it_ran():
    assert why_not_here(TRITON) == ""
    assert level_of(TRITON).startswith(("Level: interpreter. ", "Level: GPU. "))


def test_without_triton_the_check_says_so_and_calls_nothing(monkeypatch, capsys):
    from gearworks.kernels.triton import language

    monkeypatch.setattr(language, "tl", object())
    called = []
    assert notebook.check(TRITON, called.append) == 0.0 and called == []
    said = " ".join(capsys.readouterr().out.split())
    assert "not checked; 0 of 12 points" in said
    assert ("This exercise cannot be checked here: Triton is not installed here; it exists for "
            "Linux only. To try: on Linux: pip install triton torch; Colab has both.") in said
