"""The first divergence: nothing where the engines agree, and the right place where one of them is broken."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest

import gearworks.gpt2
import gearworks.kv_cache
import gearworks.model
from gearworks import cli
from gearworks.attention import attention
from gearworks.compare import compare, first_divergence, load_hf
from gearworks.model import Model

FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "GPT2", "Gemma3", "Mixtral", "Qwen3Moe", "DeepseekV2", "DeepseekV3"]
OPERATORS = {"queries", "keys", "values", "attention", "output", "final norm", "logits"}


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_that_agree_have_no_divergence(tiny_model, rng, family):
    hf_model, folder = tiny_model(family, 11)
    found = compare(Model.load(folder), hf_model, rng.integers(0, 211, 40))
    assert found.divergence is None
    expected = OPERATORS - ({"queries", "keys", "values", "attention"} if family.startswith("Deepseek") else set())
    assert expected <= found.errors.keys() and len(found.errors) >= len(expected) + 2       # and the norms of a layer
    assert 0 < max(found.errors.values()) < 1e-4


def neighbours(x, cos, sin):
    turned = np.empty_like(x)
    turned[..., ::2], turned[..., 1::2] = -x[..., 1::2], x[..., ::2]
    return x * cos + turned * sin


def top_left(q, k, v, mask=None):
    return attention(q, k, v, np.tri(len(q), len(k), dtype=bool))


def tiled(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    return attention(q, np.tile(k, (1, group, 1)), np.tile(v, (1, group, 1)), mask)


def broken_from(layer, broken, works):
    """A function that is right until it has been called `layer` times."""
    calls = iter(range(10**6))
    return lambda *arguments, **options: (broken if next(calls) >= layer else works)(*arguments, **options)


@pytest.mark.parametrize("module, name, broken, calls, layer, operator", [
    (gearworks.model, "apply_rope", neighbours, 0, 0, "queries"),
    (gearworks.model, "apply_rope", neighbours, 2, 2, "queries"),
    (gearworks.kv_cache, "attention", tiled, 1, 1, "attention"),
    (gearworks.model, "swiglu", lambda gate, up: gearworks.layers.swiglu(up, gate), 1, 1, "output"),
    (gearworks.model, "rms_norm", lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 0, 0, "input_layernorm"),
    (gearworks.model, "rms_norm", lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 3, 1,
     "post_attention_layernorm"),
    (gearworks.model, "rms_norm", lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 6, None, "final norm"),
])
def test_the_first_broken_operator_is_named(tiny_model, rng, monkeypatch, module, name, broken, calls, layer, operator):
    hf_model, folder = tiny_model("Llama", 12)
    monkeypatch.setattr(module, name, broken_from(calls, broken, getattr(module, name)))
    found = compare(Model.load(folder), hf_model, rng.integers(0, 211, 20)).divergence
    assert (found.layer, found.operator) == (layer, operator)
    assert found.error > found.tolerance and str(found.layer if layer is not None else "outside") in str(found)


def test_position_and_head_are_named(rng):
    truth = {(4, "attention"): rng.standard_normal((7, 6, 10)).astype(np.float32)}
    got = {(4, "attention"): truth[4, "attention"].copy()}
    got[4, "attention"][5, 3, 2:4] += 0.5
    found = first_divergence(got, truth, 1e-4)
    assert found.place == {"position": 5, "head": 3, "element": 2} and found.differing == 2 and found.size == 420
    assert found.error == pytest.approx(0.5, rel=1e-3) and "position 5, head 3, element 2" in str(found)


@pytest.mark.parametrize("array", [np.full((3, 4), np.nan, np.float32), np.zeros((4, 3), np.float32)], ids=["nan", "shape"])
def test_nan_and_other_shapes_are_divergences(array):
    truth = {(0, "output"): np.zeros((3, 4), np.float32), (None, "logits"): np.zeros((3, 9), np.float32)}
    found = first_divergence({(0, "output"): array}, truth, 1e-4)
    assert (found.layer, found.operator, found.error) == (0, "output", float("inf"))


def test_tolerance_follows_the_size_of_the_numbers():
    truth = {(0, "output"): np.array([[1000.0, 1.0]], np.float32)}
    got = {(0, "output"): np.array([[1000.0, 1.05]], np.float32)}
    assert first_divergence(got, truth, 1e-4) is None
    assert first_divergence(got, truth, 1e-5).place == {"position": 0, "element": 1}


def test_the_command_on_the_real_model(smollm2_folder):
    result = subprocess.run([sys.executable, "-m", "gearworks", "compare", str(smollm2_folder), "--json"],
                            capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["divergence"] is None and max(found["largest_errors"].values()) < 1e-4
    assert OPERATORS <= found["largest_errors"].keys()
    assert "No operator differs by more than 0.0001" in result.stderr


def test_the_command_reads_gguf_and_names_what_is_broken(smollm2_gguf, smollm2_folder, monkeypatch, capsys):
    """Rows of q and k left as GGUF has them: the file speaks English, and Hugging Face shows what is wrong with it."""
    monkeypatch.setattr("gearworks.weights.unpermute_rope", lambda weight, num_heads: weight)
    monkeypatch.setattr("gearworks.compare.load_hf", lambda folder: load_hf(smollm2_folder))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "reconfigure", lambda **options: None, raising=False)
    assert cli.main(["compare", str(smollm2_gguf), "--prompt", "A gear turns."]) == 1
    captured = capsys.readouterr()
    assert "input_layernorm" in captured.out
    assert "queries in layer 0 is the first to differ" in captured.err
