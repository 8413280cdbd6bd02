"""Mutants, accepted versions and the kill matrix. Fifteen seconds."""

import dataclasses
import json
import os
import time
from types import ModuleType

import pytest

from autograder.checking import methods_of_others
from autograder.variants import kill_matrix, mutation
from autograder.variants.kill_matrix import Row, examine, trials_of
from autograder.variants.mutation import (Edit, Mutant, VariantError, accepted_of,
                                          exhibit_source, load_accepted, load_mutant,
                                          mutants_of, mutated_namespace, reference_subjects)
from autograder.variants.trials import Trial, Verdict, Worker
from gearworks import layers, pipeline

SOURCE = '''
from __future__ import annotations
from dataclasses import dataclass

LIMIT = 3


@dataclass
class Value:
    number: int


def inner(x: Undefined) -> int:
    return x + LIMIT


def outer(x):
    return Value(inner(x))


def apart(x):
    return Value(x)


class Box:
    def get(self):
        return 1

    def put(self):
        return 1
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_module.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import importlib
    yield importlib.import_module("toy_module")
    import sys
    del sys.modules["toy_module"]


def mutate(module: ModuleType, *edits: tuple[str, str, str]):
    return mutated_namespace(
        module, Mutant("toy.outer", "m", tuple(Edit(*edit) for edit in edits), "a story"))


def test_an_edit_reaches_all_that_use_the_definition_and_nothing_else(toy):
    mutated = mutate(toy, ("inner", "x + LIMIT", "x - LIMIT"))
    assert mutated["outer"](10) == toy.Value(7) and toy.outer(10) == toy.Value(13)
    assert mutated["apart"] is toy.apart and mutated["Value"] is toy.Value
    assert mutate(toy, ("LIMIT", "3", "5"))["outer"](10) == toy.Value(15)
    assert (mutate(toy, ("inner", "+", "-"), ("outer", "inner(x)", "-inner(x)"))["outer"](10)
            == toy.Value(-7))


@pytest.mark.parametrize("layout", ["x + LIMIT", "x\n        + LIMIT", "\n        x + LIMIT"])
def test_an_edit_is_found_wherever_lines_are_broken(layout):
    source = f"LIMIT = 3\ndef inner(x):\n    return abs({layout})\n"
    edit = Edit("inner", "return abs(x + LIMIT)", "return 7")
    mutant = Mutant("toy.inner", "seven", (edit,), "a toy")
    namespace = {}
    exec(mutation._edited(source, edit, mutant), namespace)
    assert namespace["inner"](1) == 7


def test_an_edit_keeps_to_its_lines_where_it_names_them():
    source = "def inner(x):\n    y = x\n    return y\n"
    edit = Edit("inner", "    y = x\n", "    y = 7\n")
    edited = mutation._edited(source, edit, Mutant("toy.inner", "seven", (edit,), "a toy"))
    assert edited == "def inner(x):\n    y = 7\n    return y\n"


def test_an_edit_of_a_method_stays_in_it(toy):
    box = mutate(toy, ("Box.put", "return 1", "return 2"))["Box"]()
    assert (box.get(), box.put()) == (1, 2)


@pytest.mark.parametrize("edit, says",
                         [(("inner", "x * LIMIT", "x"), "occurs 0 times in inner"),
                          (("Box", "return 1", "return 2"), "occurs 2 times in Box"),
                          (("nothing", "x", "y"), "no definition nothing"),
                          (("Box.nothing", "x", "y"), "no definition Box.nothing"),
                          (("inner", "return", "return return"), "no Python")])
def test_an_edit_that_does_not_apply_says_why(toy, edit, says):
    with pytest.raises(VariantError, match=says) as error:
        mutate(toy, edit)
    assert "mutants/toy.toml" in error.value.hint


@pytest.mark.parametrize("replacement",
                         ["gone(x)", "[gone(part) for part in x]", "(lambda: gone)()"])
def test_a_mutant_that_uses_an_unknown_name_does_not_apply(toy, replacement):
    """Any check would kill it, whatever the check looks at:
    a name that the reference no longer imports, say."""
    with pytest.raises(VariantError, match="uses gone, which toy_module does not define"):
        mutate(toy, ("inner", "x + LIMIT", replacement))
    mutant = Mutant("toy.outer", "m", (Edit("inner", "x + LIMIT", replacement),), "a story",
                    undefined=("gone",))
    with pytest.raises(NameError, match="gone"):
        mutated_namespace(toy, mutant)["outer"]([1])


@pytest.mark.parametrize("entry, says",
                         [("[[mutant]]\nname = 'x'", "lacks 'edits'"),
                          ("[[mutant]]\nedits = []\ncomponent='toy.a'\nname='x'\nstory='s'",
                           "no edits"),
                          ("[[mutant", "cannot be read"),
                          (2
                           * "[[mutant]]\nedits=[{in='a',find='b',replace='c'}]\n"
                             "component='toy.a'\nname='x'\nstory='s'\n", "two mutants x")])
def test_a_file_of_mutants_that_is_wrong_says_why(tmp_path, monkeypatch, entry, says):
    (tmp_path / "mutants").mkdir()
    (tmp_path / "mutants" / f"toy{hash(entry)}.toml").write_text(entry, encoding="utf-8")
    monkeypatch.setattr(mutation, "FOLDER", tmp_path)
    with pytest.raises(VariantError, match=says):
        mutants_of(f"toy{hash(entry)}.a")


def test_mutants_share_the_dataclasses_of_the_reference():
    for mutant in mutants_of("pipeline.run_request"):
        run, = load_mutant("pipeline.run_request", mutant)
        assert (run is not pipeline.run_request
                and run.__globals__["Completion"] is pipeline.Completion)


def test_a_mutants_source_is_the_module_with_its_edits():
    source = exhibit_source("layers", "root-forgotten").text
    assert ("def swiglu" in source and "x / (mean_square + eps)" in source
            and "np.sqrt(mean_square" not in source)
    with pytest.raises(VariantError, match="has 0 of this name"):
        exhibit_source("layers", "no-such-mutant")


def test_accepted_versions_come_from_their_files():
    versions = {version.name: version for version in accepted_of("layers.rms_norm")}
    assert "rms_norm__loop" in versions
    norm, = load_accepted("layers.rms_norm", versions["rms_norm__loop"])
    assert norm is not layers.rms_norm and norm.__module__ == "accepted_rms_norm__loop"


def test_what_an_accepted_version_leaves_out_is_the_references(tmp_path):
    path = tmp_path / "silu__x.py"
    path.write_text("def silu(x):\n    return x\n", encoding="utf-8")
    assert load_accepted("layers.silu+swiglu", mutation.Accepted(path))[1] is layers.swiglu
    with pytest.raises(VariantError, match="defines none of softmax"):
        load_accepted("layers.softmax", mutation.Accepted(path))


def test_versions_of_some_methods_leave_the_others_to_the_reference(tmp_path, monkeypatch):
    exercise = "kv_cache.BlockPool.allocate+free"
    assert {mutant.component for mutant in mutants_of(exercise)} == {
        "kv_cache.BlockPool.allocate", "kv_cache.BlockPool.free"}
    [pool] = load_mutant(exercise, next(mutant for mutant in mutants_of(exercise)
                                        if mutant.name == "last-empty-first"))
    assert pool(3, 1).allocate() == 2 and pool(3, 1).available == 3
    assert all(version.name.startswith("BlockPool.allocate+free__")
               for version in accepted_of(exercise)) and len(accepted_of(exercise)) >= 3
    assert not {version.name for version in accepted_of("kv_cache.KVCache")} & {
        version.name for version in accepted_of(exercise)}
    assert methods_of_others(exercise) == {"share", "keep", "find", "evict"}


def test_an_exercise_names_parts_of_the_engine():
    assert reference_subjects("layers.silu+swiglu") == [layers.silu, layers.swiglu]
    for name in ("layers.nothing", "nothing.at_all"):
        with pytest.raises(VariantError, match="no component"):
            reference_subjects(name)


def accepted_file(tmp_path, monkeypatch, body: str, name: str = "rms_norm__odd"):
    """A worker that sees one more accepted version of rms_norm."""
    folder = tmp_path / "accept" / "layers"
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(body, encoding="utf-8")
    start = tmp_path / "sitecustomize.py"
    start.write_text("from pathlib import Path\nimport autograder.variants.mutation as m\n"
                     f"m.FOLDER = Path({str(tmp_path)!r})\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH",
                       os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return Trial("layers.rms_norm", "accepted", 1, name)


def test_a_version_that_ends_its_process_fails_and_the_next_trial_runs(tmp_path, monkeypatch):
    trial = accepted_file(tmp_path, monkeypatch,
                          "import os\ndef rms_norm(x, weight, eps):\n    os._exit(3)\n")
    with Worker() as worker:
        assert worker.run(trial) == Verdict(failed="docstring_example", how="ended its process")
        assert worker.run(Trial("layers.rms_norm", "reference", 1)).score == 1


def test_a_version_that_nothing_inside_can_stop_is_killed(tmp_path, monkeypatch):
    trial = accepted_file(tmp_path, monkeypatch,
                          "import itertools\ndef rms_norm(x, weight, eps):\n    "
                          "sum(itertools.repeat(0))\n")
    with Worker() as worker:
        assert worker.run(Trial("layers.rms_norm", "reference", 1)).score == 1
        start = time.monotonic()
        assert worker.run(trial, silence=1).failed == "docstring_example"
        assert time.monotonic() - start < 60


def test_a_version_that_prints_does_not_disturb_the_news(tmp_path, monkeypatch):
    trial = accepted_file(tmp_path, monkeypatch,
                          "import os\ndef rms_norm(x, weight, eps):\n    print('{}')\n    "
                          "os.write(1, b'{}')\n    return x\n")
    with Worker() as worker:
        assert worker.run(trial).failed == "docstring_example"


@pytest.mark.long
def test_a_mutant_dies_by_the_same_check_in_a_process_that_is_new():
    """A check that loads Hugging Face's model takes longer than a mutant may, but only once."""
    exercise = "deepseek.absorbed_queries"
    with Worker() as worker:
        verdict = worker.run(Trial(exercise, "mutant", 1, f"{exercise}:scale-without-yarn"))
    assert (verdict.failed, verdict.how) == ("stretched_contexts", "failed")


class Scripted:
    """A worker whose verdicts are known."""

    def __init__(self, **verdicts):
        self.verdicts = verdicts

    def run(self, trial):
        return self.verdicts.get(trial.kind, Verdict(1.0))


def test_the_matrix_complains_of_everything_that_is_wrong():
    row = examine("layers.rms_norm",
                  Scripted(reference=Verdict(0.9, "zeros"), stub=Verdict(0.1),
                           accepted=Verdict(0.5, "any_shape")))
    complaints = " / ".join(row.complaints())
    for words in ("the reference gets 90%", "an untouched stub gets 10%",
                  "root-forgotten survives seed 1", "rms_norm__loop fails any_shape"):
        assert words in complaints
    assert "has 0 mutants" in " ".join(Row("layers.rms_norm").complaints())
    failed = examine("layers.rms_norm", Scripted(mutant=Verdict(error="no such definition")))
    assert any("no such definition" in complaint for complaint in failed.complaints())


def test_a_mutant_must_die_for_every_seed():
    class Lucky(Scripted):
        def run(self, trial):
            return (Verdict(failed="" if trial.seed == 3 else "zeros") if trial.kind == "mutant"
                    else Verdict(1.0))
    row = examine("layers.rms_norm", Lucky(), seeds=4)
    assert set(row.survived.values().__iter__().__next__()) == {3} and row.complaints()
    assert len(trials_of("layers.rms_norm", 4)) == 4 * len(trials_of("layers.rms_norm"))


def test_the_command_prints_a_table_or_json(capsys):
    assert kill_matrix.main("layers.rms_norm") == 0
    table = capsys.readouterr().out
    assert "16 of 16 mutants killed" in table and "root-forgotten" in table
    assert kill_matrix.main("layers", json=True, seeds=2) == 0
    rows = {row["exercise"]: row for row in json.loads(capsys.readouterr().out)["exercises"]}
    row = rows["layers.rms_norm"]
    assert (len(rows) > 1
            and set(row) == {field.name for field in dataclasses.fields(Row)} | {"complaints"})
    with pytest.raises(VariantError, match="layers.rms_nrom"):
        kill_matrix.named("layers.rms_nrom")
