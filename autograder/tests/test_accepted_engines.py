"""Engines of strangers: every exercise solved by an accepted version, assembled and tested.

Checks and conformance say the same: what passes the checks passes the reference's tests, but
for what these mark as the reference's own promise. Two engines and some tests, a minute of
processor time; with --all-engines all accepted versions, and all tests of the engine's parts,
several minutes for each engine.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from autograder.submissions.accepted_engines import (assemble_accepted, engines_for_all,
                                                     version_of)
from autograder.submissions.overlay import engine_path
from autograder.variants.mutation import accepted_of

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "solutions" / "tests"
# Each part of the path that a token takes, by tests that take a moment.
SOME = ["accounting", "kv_cache", "block_pool", "safetensors", "weights", "unigram",
        "wordpiece", "families.py::test_logits_equal_hf",
        "families.py::test_a_step_may_have_no_token"]
MORE = ["batch_invariance", "beam", "contrastive", "decoding", "docstrings", "engine",
        "families", "flash", "gguf", "model", "operators", "paged_attention", "parallel",
        "pipeline", "products", "quantization", "quantized_cache", "quantized_layers",
        "sampling", "scheduler", "server_protocol", "server_tools", "speculative", "structured",
        "tokenizer"]
ENGINES = 5


@pytest.fixture(scope="module")
def chapters():
    from autograder.chapters.chapter import chapter_paths, read_chapter
    return [read_chapter(path) for path in chapter_paths(REPOSITORY / "book" / "chapters")]


def test_few_engines_hold_every_accepted_version(chapters):
    assert engines_for_all(chapters) == ENGINES
    for exercise in (exercise for chapter in chapters for exercise in chapter.exercises):
        versions = {version.name for version in accepted_of(exercise.name)}
        drawn = [version_of(exercise, number).name for number in range(ENGINES)]
        assert {*drawn} == versions
        assert max(Counter(drawn).values()) <= -(-ENGINES // len(versions))
        assert drawn == [version_of(exercise, number).name for number in range(ENGINES)]


@pytest.mark.parametrize("number", range(ENGINES))
def test_right_versions_make_a_right_engine(chapters, number, tmp_path, request):
    tries_all = request.config.getoption("--all-engines")
    if number > 1 and not tries_all:
        pytest.skip("--all-engines tries this one, too")
    gears = assemble_accepted(chapters, number, tmp_path / "engine")
    assert [gear.component.path for gear in gears if not gear.is_learners or gear.notes] == []
    chosen = SOME + MORE * tries_all
    files = [TESTS / f"test_{name}" if ".py" in name else TESTS / f"test_{name}.py"
             for name in chosen]
    environment = os.environ | {"PYTHONPATH": engine_path(tmp_path / "engine")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           *map(str, files), "--engine", str(tmp_path / "engine")],
                          capture_output=True, encoding="utf-8", cwd=REPOSITORY,
                          env=environment)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
