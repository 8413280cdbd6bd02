"""What fewer bits cost: the three figures against their definitions, and the command that makes
the table. About 10 s; with --long, SmolLM2 and a leaderboard's view of it."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from gearworks.cli import commands as cli
from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.quantization import quality
from gearworks.quantization.methods import METHODS, bits_per_weight, round_model
from gearworks.quantization.quality import (
    Quality, Way, compare, log_probabilities, measure, parse_way, table)


@pytest.fixture(scope="module")
def model(tiny_llama) -> Model:
    return Model.load(tiny_llama(12, hidden_size=64, intermediate_size=128,
                                 num_attention_heads=4)[1])


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 211, 150)       # no whole number of steps


def texts() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 211, (3, 64))


def test_figures_are_those_of_their_definitions(model, ids):
    """In float64, by torch, from all logits at once."""
    import torch

    other = round_model(model, "int4", 32).model
    reference = list(log_probabilities(model, ids, model.new_cache(150)))
    assert [len(piece) for piece in reference] == [64, 64, 22]
    found = compare(reference, other, ids, other.new_cache(150))
    p, q = (torch.tensor(each.forward(ids, np.arange(150), each.new_cache(150)),
                         dtype=torch.float64)[:-1] for each in (model, other))
    nll = torch.nn.functional.cross_entropy(q, torch.tensor(ids[1:]))
    kl = torch.nn.functional.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True,
                                    reduction="batchmean")
    assert found == (pytest.approx(nll.exp().item(), rel=1e-5),
                     pytest.approx(kl.item(), rel=1e-4),
                     pytest.approx((p.argmax(-1) == q.argmax(-1)).double().mean().item()))
    assert found[1] > 1e-3                      # else nothing would have been compared


def test_a_model_does_not_differ_from_itself(model, ids):
    first, = measure(model, [], ids, texts)
    assert (first.way, first.bits, first.top1) == ("float32", 32.0, 1.0) and first.kl < 1e-6


def test_more_bits_and_smaller_groups_are_nearer(model, ids):
    ways = ["int8", "fp8", "int4:32", "int4:64", "mxfp4", "kv-int8", "kv-int4", "gptq:32"]
    rows = {row.way: row for row in measure(model, [*map(parse_way, ways)], ids, texts)}
    assert [*rows] == ["float32", *ways]
    kl = {way: row.kl for way, row in rows.items()}
    assert kl["int8"] < kl["fp8"] < kl["int4:32"] < kl["mxfp4"]
    assert kl["kv-int8"] < kl["kv-int4"]
    assert rows["int8"].top1 > rows["int4:64"].top1
    assert rows["int4:32"].bits == 4.625 and rows["mxfp4"].bits == 4.25
    assert 8 + 32 / 128 < rows["int8"].bits < 8 + 32 / 64       # of rows of 64 and of 128


def test_bits_are_what_a_file_takes(model):
    """Counted from the codes and scales themselves; GGUF's from its own blocks."""
    expected = {"int4": 4 + (16 + 4) / 32, "gptq": 4.625, "awq": 4.625, "mxfp4": 4.25,
                "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "int8": 8.5, "fp8": 8.5}
    assert expected.keys() == {*METHODS}
    name = "model.layers.0.self_attn.q_proj.weight"
    for method, bits in expected.items():
        assert bits_per_weight(round_model(model, method, 32, texts()).matrices[name]) == bits


def test_ways_by_their_names():
    assert parse_way("awq") == Way("awq", 32) and str(parse_way("awq:128")) == "awq:128"
    assert str(parse_way("kv-int4")) == "kv-int4"
    for wrong in ("", "int3", "int4:", "int4:0", "int4:x", "int4:٣", "int8:32", "kv-int8:2"):
        with pytest.raises(ValueError):
            parse_way(wrong)


def test_ways_that_sizes_do_not_allow_are_refused_before_anything_runs(model, ids):
    with pytest.raises(ModelError, match="not whole groups of 128"):
        next(measure(model, [Way("int8"), Way("int4", 128)], ids, texts))


@pytest.mark.parametrize("count", [1, 257])
def test_a_text_that_cannot_be_measured_is_refused(model, count):
    with pytest.raises(ModelError, match=f"it has {count} tokens"):
        next(measure(model, [], np.zeros(count, int), texts))


def test_the_texts_are_not_the_same():
    held = (quality.TEXTS / "held.txt").read_text("utf-8").splitlines()
    calibration = (quality.TEXTS / "calibration.txt").read_text("utf-8").splitlines()
    assert {*held} & {*calibration} == {""}


def test_the_command_makes_a_table_a_file_and_a_picture(tiny_folder, tmp_path, capsys):
    assert cli.main(["quality", str(tiny_folder), "--methods", "int8,kv-int4,fp8", "--tokens",
                     "70", "--json", str(tmp_path / "q.json"), "--plot",
                     str(tmp_path / "q.svg")]) == 0
    output, error = capsys.readouterr()
    assert error == ""                                          # no bars outside a terminal
    saved = json.loads((tmp_path / "q.json").read_text("utf-8"))
    assert saved["tokens"] == 70 and saved["text"] == "gearworks"
    rows = [Quality(**row) for row in saved["rows"]]
    assert [row.way for row in rows] == ["float32", "int8", "kv-int4", "fp8"]
    assert output.splitlines() == [*table(rows)]
    drawn = "".join(ET.parse(tmp_path / "q.svg").getroot().itertext())
    assert all(f"{row.way}  ({row.perplexity:.2f})" in drawn for row in rows[1:])
    assert "70 tokens" in drawn and f"{rows[0].perplexity:.2f}" in drawn


def test_the_command_takes_another_text(tiny_folder, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\ufeffOne two three four five six.", encoding="utf-8")
    assert cli.main(["quality", str(tiny_folder), "--methods", "int8", "--text", str(text),
                     "--json", str(tmp_path / "q.json")]) == 0
    capsys.readouterr()
    saved = json.loads((tmp_path / "q.json").read_text("utf-8"))
    assert (saved["tokens"], saved["text"]) == (7, "text.txt")
    text.write_bytes(b"caf\xe9")
    assert cli.main(["quality", str(tiny_folder), "--text", str(text)]) == 1
    assert "its byte 3 is no UTF-8" in capsys.readouterr().err
    assert cli.main(["quality", str(tiny_folder), "--methods", "gptq:16", "--tokens", "9",
                     "--calibration", str(tmp_path / "q.json")]) == 1
    output, error = capsys.readouterr()
    assert "cannot calibrate" in error and output == ""
