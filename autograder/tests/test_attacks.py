"""Attacks and cheats: each is tried in the sandbox that a class gets.
A minute on two processors."""

import ast
import os
import sys
from pathlib import Path

import pytest

import autograder
from autograder.attacks import doctor
from autograder.attacks.attack import CORPUS, EXERCISE, attacks
from autograder.attacks.trial import (HIDDEN, HONEST, PROMISES, STOLEN, WRONG, run_trial,
                                      tree_hash)
from autograder.checking.report import text
from autograder.judge.attempt import Attempt
from autograder.judge.judging import judge
from autograder.judge.tampering import signs_of_tampering
from autograder.judge.workers import Workers

ACCEPTED = sorted((Path(autograder.__file__).parent / "accept").rglob("*.py"))


@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_an_attack_achieves_nothing(attack, sandbox):
    """Not above its honest score, the others' grades unchanged, nothing read, told, reached,
    changed or left behind."""
    result = run_trial(attack, sandbox)
    assert [PROMISES[name] for name in result.broken] == []


def test_the_corpus_is_whole():
    """And no file of it runs when it is only imported by a tool that walks the package."""
    names = {attack.name for attack in attacks()}
    assert len(names) >= 50 and sum(not attack.is_right for attack in attacks()) >= 20
    assert not (CORPUS / "__init__.py").exists()
    for attack in attacks():
        assert any(isinstance(node, ast.FunctionDef) and node.name == "rms_norm"
                   for node in ast.parse(attack.code).body), attack.name


# Each with the promises that it breaks where nothing holds it. The others of the corpus would
# harm the machine that runs this test.
WITHOUT_A_SANDBOX = {
    "reads_the_gradebook": {"reading"}, "reads_the_secret": {"reading"},
    "reads_the_checks": {"reading"}, "looks_around_in_proc": {"reading"},
    "changes_the_gradebook": {"files"}, "calls_home": {"network"},
    "detached_child": {"processes"}, "changes_the_course": {"reading", "files"},
}


@pytest.mark.skipif(sys.platform != "linux", reason="what it looks for is Linux's")
@pytest.mark.parametrize("name", WITHOUT_A_SANDBOX)
def test_the_trial_sees_what_an_attack_achieves(name):
    [attack] = [each for each in attacks() if each.name == name]
    if name == "changes_the_course":                # all but the copy of the class's folder
        attack = type(attack)(attack.name, attack.tries, attack.is_right, attack.code.replace(
            "places = [gearworks.__file__, np.__file__, sys.executable, os.__file__, ",
            "places = [").replace('"/course/x", "/x",\n', "").replace(
            '"/usr/x", "/etc/x", "/dev/x", ', ""))
        assert "np.__file__" not in attack.code and '"/x"' not in attack.code
    assert {*run_trial(attack, None).broken} == WITHOUT_A_SANDBOX[name]


def test_a_tree_is_known_by_names_rights_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    seen = {tree_hash(tmp_path)}
    (tmp_path / "a").write_text("2")
    seen.add(tree_hash(tmp_path))
    (tmp_path / "b").mkdir()
    seen.add(tree_hash(tmp_path))
    (tmp_path / "a").chmod(0o400)
    seen.add(tree_hash(tmp_path))
    assert len(seen) == (3 if os.name == "nt" else 4)


CHEATS = ["patches_the_grader", "patches_numpy", "takes_the_reference",
          "takes_the_reference_later", "looks_into_frames", "equal_to_everything",
          "lying_array", "changes_the_gradebook", "pickle_bomb", "reads_the_judges_memory",
          "calls_home", "exit_at_once", "refuses_to_end", "climbs_into_the_judge"]


@pytest.mark.parametrize("name", CHEATS)
def test_what_looks_like_tampering_is_told_to_the_instructor(name):
    [attack] = [each for each in attacks() if each.name == name]
    assert signs_of_tampering(EXERCISE, attack.code)


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_no_right_version_looks_like_tampering(path):
    exercise = f"{path.parent.name}.{path.stem.partition('__')[0]}"
    assert signs_of_tampering(exercise, path.read_text(encoding="utf-8")) == ()


def test_a_flag_costs_nothing_and_no_learner_sees_it():
    flagged = "import socket, ctypes\n" + HONEST
    with Workers() as workers:
        report, plain = (judge(Attempt(EXERCISE, code), workers, seed=3)
                         for code in (flagged, HONEST))
    assert report.score == plain.score == plain.total and plain.flags == ()
    assert len(report.flags) == 2 and not any(flag in text(report) for flag in report.flags)


LEAKS = ["print(repr(x.tolist()))", "raise ValueError(repr(x.tolist()))",
         "raise type(repr(x.tolist()), (KeyError,), {})",
         "raise type(str(x.flat[0]), (AssertionError,), {})",
         "import warnings; warnings.warn(repr(x.tolist()))",
         "import logging; logging.error(repr(x.tolist()))",
         "raise NotImplementedError(repr(x.tolist()))",
         "raise ImportError(repr(x.tolist()), name=repr(x.tolist()))",
         "return repr(x.tolist())", "return {repr(x.tolist()): x}",
         "import os; os.write(1, repr(x.tolist()).encode()); os._exit(1)",
         "from gearworks.errors import ModelError; raise ModelError(*3 * [repr(x.tolist())])"]


@pytest.mark.parametrize("leak", LEAKS)
def test_nothing_that_a_hidden_check_gives_comes_back(leak, sandbox):
    """Of the exercise's real hidden checks, and of canaries."""
    given = set()

    def remember(x, *others):
        given.update(repr(float(value))[:7] for value in x.flat if abs(value) > 1e-3)
        return x
    from autograder.attacks.trial import trial_checks
    from autograder.checking import checks_of
    from autograder.checking.running import run_exercise
    run_exercise(EXERCISE, [remember], public=False, seed=7)
    code = f"def rms_norm(x, weight, eps):\n    {leak}\n    return x"
    assert checks_of(EXERCISE) and len(given) > 20
    with Workers(sandbox) as workers:
        real = judge(Attempt(EXERCISE, code), workers, public=False, seed=7, diagnose=True)
        ours = judge(Attempt(EXERCISE, code), workers, seed=7, checks=trial_checks())
    told = repr(real) + repr([each for each in ours.outcomes if not each.public])
    assert str(HIDDEN) not in told and not [value for value in given if value in told]


def test_the_doctor_says_what_held_and_what_did_not(sandbox):
    chosen = doctor.chosen_attacks(["equal_to_everything", "exit_at_once"])
    told = []
    results = doctor.examine(chosen, sandbox, jobs=2, tell=lambda each: told.append(each))
    assert [result.attack.name for result in results] == ["equal_to_everything", "exit_at_once"]
    assert len(told) == 2 and "All held" in doctor.summary(results, sandbox)
    assert doctor.line(results[0]).startswith("held    equal_to_everything")
    bad = type(results[0])(chosen[0], ("network",), 10.0, (), 1.0)
    assert "BROKEN" in doctor.line(bad) and PROMISES["network"] in doctor.line(bad)
    assert "1 did not hold" in doctor.summary([bad, results[1]], sandbox)
    assert doctor.as_json([bad], sandbox)["held"] is False
    with pytest.raises(Exception, match="no attack 'nonsense'"):
        doctor.chosen_attacks(["nonsense"])


def test_the_command_has_an_exit_code(sandbox, capsys, monkeypatch):
    from autograder.cli import main
    assert main(["doctor", "equal_to_everything"]) == 0
    assert "All held" in capsys.readouterr().out
    monkeypatch.setenv("AUTOGRADER_SANDBOX", "none")
    assert main(["doctor"]) == 1
    assert "no class is graded without a sandbox" in capsys.readouterr().err
    assert main(["doctor", "--manifests"]) == 0
    assert "NetworkPolicy" in capsys.readouterr().out


def test_a_wrong_answer_and_a_stolen_one_are_told_apart():
    assert STOLEN not in HONEST + WRONG
