"""The first divergence: nothing where the engines agree,
and the right place where one of them is broken."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gearworks.families.gpt2
import gearworks.kv_cache
import gearworks.model
from gearworks.attention import attention
from gearworks.cli import commands as cli
from gearworks.comparison.compare import compare, first_divergence, largest_errors, load_hf
from gearworks.errors import ModelError
from gearworks.model import Model

FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "GPT2", "Gemma3", "Mixtral", "Qwen3Moe",
            "DeepseekV2", "DeepseekV3", "SmolLM3", "Phi3", "Olmo2", "GptOss", "Gemma2"]
OPERATORS = {"queries", "keys", "values", "attention", "output", "final norm", "logits"}


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_that_agree_have_no_divergence(tiny_model, rng, family):
    hf_model, folder = tiny_model(family, 11)
    found = compare(Model.load(folder), hf_model, rng.integers(0, 211, 40))
    assert found.divergence is None
    expected = OPERATORS - ({"queries", "keys", "values", "attention"}
                            if family.startswith("Deepseek") else set())
    # and the norms of a layer
    assert expected <= found.errors.keys() and len(found.errors) >= len(expected) + 2
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
    return lambda *arguments, **options: (broken if next(calls) >= layer
                                          else works)(*arguments, **options)


@pytest.mark.parametrize("module, name, broken, calls, layer, operator",
                         [(gearworks.model, "apply_rope", neighbours, 0, 0, "queries"),
                          (gearworks.model, "apply_rope", neighbours, 2, 2, "queries"),
                          (gearworks.kv_cache, "attention", tiled, 1, 1, "attention"),
                          (gearworks.model, "swiglu",
                           lambda gate, up: gearworks.layers.swiglu(up, gate), 1, 1, "output"),
                          (gearworks.model, "rms_norm",
                           lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 0,
                           0, "input_layernorm"),
                          (gearworks.model, "rms_norm",
                           lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 3,
                           1, "post_attention_layernorm"),
                          (gearworks.model, "rms_norm",
                           lambda x, weight, eps: gearworks.layers.rms_norm(x, weight, 0.1), 6,
                           None, "final norm")])
def test_the_first_broken_operator_is_named(tiny_model, rng, monkeypatch, module, name, broken,
                                            calls, layer, operator):
    hf_model, folder = tiny_model("Llama", 12)
    monkeypatch.setattr(module, name, broken_from(calls, broken, getattr(module, name)))
    found = compare(Model.load(folder), hf_model, rng.integers(0, 211, 20)).divergence
    assert (found.layer, found.operator) == (layer, operator)
    assert (found.error > found.tolerance
            and str(found.layer if layer is not None else "outside") in str(found))


def test_position_and_head_are_named(rng):
    truth = {(4, "attention"): rng.standard_normal((7, 6, 10)).astype(np.float32)}
    got = {(4, "attention"): truth[4, "attention"].copy()}
    got[4, "attention"][5, 3, 2:4] += 0.5
    found = first_divergence(got, truth, 1e-4)
    assert (found.place == {"position": 5, "head": 3, "element": 2} and found.differing == 2
            and found.size == 420)
    assert (found.error == pytest.approx(0.5, rel=1e-3)
            and "position 5, head 3, element 2" in str(found))


@pytest.mark.parametrize("array",
                         [np.full((3, 4), np.nan, np.float32), np.zeros((4, 3), np.float32)],
                         ids=["nan", "shape"])
def test_nan_and_other_shapes_are_divergences(array):
    truth = {(0, "output"): np.zeros((3, 4), np.float32),
             (None, "logits"): np.zeros((3, 9), np.float32)}
    found = first_divergence({(0, "output"): array}, truth, 1e-4)
    assert (found.layer, found.operator, found.error) == (0, "output", float("inf"))


def test_the_table_hides_no_nan():
    truth = {(0, "output"): np.ones((3, 4), np.float32),
             (1, "output"): np.ones((3, 4), np.float32)}
    got = {(0, "output"): np.full((3, 4), np.nan, np.float32),
           (1, "output"): np.ones((3, 4), np.float32)}
    assert largest_errors(got, truth) == {"output": float("inf")}
    assert (largest_errors({(1, "output"): np.ones((4, 3), np.float32)}, truth)
            == {"output": float("inf")})


def test_other_shapes_are_said_as_shapes():
    found = first_divergence({(2, "keys"): np.zeros((3, 2, 5), np.float32)},
                             {(2, "keys"): np.zeros((3, 5, 2), np.float32)}, 1)
    assert str(found) == ("keys in layer 2 is the first to differ: its shape is (3, 2, 5), "
                          "expected (3, 5, 2)")


def test_weights_that_are_no_numbers_are_nothing_to_compare_with(tiny_model):
    hf_model, folder = tiny_model("Llama", 13)
    hf_model.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("nan")
    with pytest.raises(ModelError, match="own output in layer 1 is not finite"):
        compare(Model.load(folder), hf_model, [1, 2, 3])


def test_a_folder_that_hf_does_not_load_is_said_in_one_line(tiny_model):
    _, folder = tiny_model("Llama", 14)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mystery"}),
                                        encoding="utf-8")
    with pytest.raises(ModelError, match="Hugging Face cannot load") as error:
        load_hf(folder)
    assert "mystery" in error.value.why and "\n" not in error.value.why


def run(*arguments):
    return cli.main(["compare", *map(str, arguments)])


@pytest.mark.parametrize("family", ["GPT2", "Gemma3", "DeepseekV2", "Qwen3Moe"])
def test_the_command_needs_no_tokenizer(tiny_model, capsys, family):
    """Sizes that Hugging Face's fast way through experts refuses included."""
    _, folder = tiny_model(family, 15)
    assert run(folder) == 0
    said = capsys.readouterr()
    assert ("24 random ids" in said.err and "No operator differs" in said.err
            and "logits" in said.out)
    assert run(folder, "--prompt", "a text") == 1
    assert "tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, says", [
    (["--prompt", "gear " * 9000], "and the context 8192"),
])
def test_prompts_that_cannot_be_compared(smollm2_folder, capsys, arguments, says):
    assert run(smollm2_folder, *arguments) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", ["nan", "0", "-1", "inf", "much"])
def test_a_tolerance_is_a_number_above_zero(capsys, tolerance):
    assert run("smollm2", "--tolerance", tolerance) == 2
    assert f"{tolerance} is not a number" in capsys.readouterr().err


def test_json_knows_no_nan(tiny_model, monkeypatch, capsys):
    """Our engine broken so that it gives nan: the report is still JSON."""
    _, folder = tiny_model("Llama", 16)
    monkeypatch.setattr(gearworks.model, "swiglu", lambda gate, up: np.full_like(gate, np.nan))
    assert run(folder, "--json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out, parse_constant=pytest.fail)
    assert found["divergence"]["got"] is None and found["divergence"]["operator"] == "output"
    assert "output in layer 0 is the first to differ" in said.err and "got nan" in said.err


def test_tolerance_follows_the_size_of_the_numbers():
    truth = {(0, "output"): np.array([[1000.0, 1.0]], np.float32)}
    got = {(0, "output"): np.array([[1000.0, 1.05]], np.float32)}
    assert first_divergence(got, truth, 1e-4) is None
    assert first_divergence(got, truth, 1e-5).place == {"position": 0, "element": 1}


def test_the_command_on_the_real_model(smollm2_folder):
    result = subprocess.run([sys.executable, "-m", "gearworks", "compare", str(smollm2_folder),
                             "--json"], capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["divergence"] is None and max(found["largest_errors"].values()) < 1e-4
    assert OPERATORS <= found["largest_errors"].keys()
    assert "No operator differs by more than 0.0001" in result.stderr


def test_the_command_reads_gguf_and_names_what_is_broken(smollm2_gguf, smollm2_folder,
                                                         monkeypatch, capsys):
    """Rows of q and k left as GGUF has them:
    the file speaks English, and Hugging Face shows what is wrong with it."""
    monkeypatch.setattr("gearworks.weights.unpermute_rope", lambda weight, num_heads: weight)
    monkeypatch.setattr("gearworks.comparison.compare.load_hf",
                        lambda folder: load_hf(smollm2_folder))
    assert run(smollm2_gguf, "--prompt", "A gear turns.") == 1
    captured = capsys.readouterr()
    assert "input_layernorm" in captured.out
    assert "queries in layer 0 is the first to differ" in captured.err
