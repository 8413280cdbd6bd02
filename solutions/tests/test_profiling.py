"""What a profile counts is what chapter 1's formulas say, and watching changes nothing.
About 10 s."""

import dataclasses
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gearworks import attention, layers, model, moe
from gearworks.accounting import ModelShape, bytes_moved, forward_flops
from gearworks.backends import load_model
from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.profiling import operators as watching
from gearworks.profiling.machine import Machine, measure_machine
from gearworks.profiling.operators import ATTENTION, BETWEEN, NORMS, Operator, attended
from gearworks.profiling.profile import Profile, Work, _middle, limits, profile

MACHINE = Machine(bandwidth=20e9, flops_per_second=100e9, threads=2)
WORKS = [Work(past_tokens=40), Work(past_tokens=1), Work(batch=5, past_tokens=33),
         Work(batch=3, past_tokens=64), Work(new_tokens=70), Work(new_tokens=7, past_tokens=21),
         Work(batch=2, new_tokens=4, past_tokens=62)]
# Key/value heads of another number than query heads, heads of another size than D/H, tied and
# untied, biases, norms of heads
SHAPES = {"Llama": {"head_dim": 10}, "Qwen2": {"tie_word_embeddings": True},
          "Qwen3": {"head_dim": 10, "intermediate_size": 23, "num_attention_heads": 4}}


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """A function that gives a random model of a family, and its shape in chapter 1's terms."""
    loaded = {}

    def load(family, **settings):
        key = family, *sorted(settings)
        if key not in loaded:
            hf, folder = tiny_model(family, 5, **settings)
            loaded[key] = Model.load(folder), hf.config.to_dict()
        return loaded[key]
    return load


def by_name(made: Profile) -> dict[str, Operator]:
    names = {each.name: each for each in made.operators}
    assert len(names) == len(made.operators)
    return names


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("family", SHAPES)
def test_bytes_and_flops_are_chapter_1s(tiny, family, work):
    engine, config = tiny(family, **SHAPES[family])
    shape = ModelShape.from_hf(config)
    whole = profile(engine, work, MACHINE, rounds=1).whole
    assert whole.bytes == bytes_moved(shape, "float32", work.batch, work.new_tokens,
                                      work.past_tokens, "float32")
    # the last layer computes on only for the rows whose logits are wanted
    spared = work.batch * (work.new_tokens - 1) * 2 * (
        shape.hidden_size * shape.num_attention_heads * shape.head_dim
        + 3 * shape.hidden_size * shape.intermediate_size)
    assert whole.flops == (work.batch * forward_flops(shape, work.new_tokens, work.past_tokens)
                           - spared)


def test_each_operator_has_its_own(tiny):
    engine, config = tiny("Qwen2", **SHAPES["Qwen2"])
    shape, work = ModelShape.from_hf(config), Work(batch=3, past_tokens=20)
    D, F, V, L = (shape.hidden_size, shape.intermediate_size, shape.vocab_size,
                  shape.num_hidden_layers)
    H, K, d = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    found = {name: (each.calls, each.bytes, each.flops) for name, each
             in by_name(profile(engine, work, MACHINE, rounds=1)).items()}
    assert found == {
        NORMS: (2 * L + 1, 4 * D * (2 * L + 1), 0),
        "qkv_proj": (L, 4 * L * (D + 1) * (H + 2 * K) * d, 3 * 2 * L * D * (H + 2 * K) * d),
        "rope": (L, 0, 0),
        ATTENTION: (L, 4 * L * 3 * 21 * 2 * K * d, L * 3 * 21 * 4 * H * d),
        "o_proj": (L, 4 * L * D * H * d, 3 * 2 * L * D * H * d),
        "gate_up_proj": (L, 4 * L * D * 2 * F, 3 * 2 * L * D * 2 * F),
        "activation": (L, 0, 0),
        "down_proj": (L, 4 * L * D * F, 3 * 2 * L * D * F),
        "lm_head": (1, 4 * D * V, 3 * 2 * D * V), BETWEEN: (0, 0, 0)}


@pytest.mark.parametrize("family, others", [
    ("GPT2", {"up_proj"}), ("Gemma3", {"gate_up_proj"}), ("Mixtral", {"router", "routing"}),
    ("Qwen3Moe", {"router", "routing"}), ("Olmo2", {"gate_up_proj", "activation"}),
    ("SmolLM3", {"qkv_proj", "rope"}), ("Phi3", {"qkv_proj", "rope"}),
    ("Gemma2", {"gate_up_proj"}), ("GptOss", {"router", "routing", "activation"}),
    ("DeepseekV3", {"router", "routing", "kv_a_proj", "q_a_proj", "q_b_proj", "o_proj",
                    "shared_gate_up_proj"})])
def test_every_family_has_a_profile_without_strangers(tiny, family, others):
    engine, _ = tiny(family)
    found = by_name(profile(engine, Work(batch=2, past_tokens=8), MACHINE, rounds=1))
    assert {*others, NORMS, ATTENTION, "down_proj", "lm_head", BETWEEN} <= found.keys()
    assert "product" not in found                       # each matrix is known by its field


def test_an_expert_that_nobody_visits_is_not_read(tiny):
    engine, config = tiny("Mixtral")
    one = by_name(profile(engine, Work(past_tokens=8), MACHINE, rounds=1))
    D, F, k = config["hidden_size"], config["intermediate_size"], config["num_experts_per_tok"]
    assert one["down_proj"].calls == engine.config.num_hidden_layers * k
    assert one["down_proj"].bytes == engine.config.num_hidden_layers * k * 4 * D * F
    assert one["gate_up_proj"].bytes == 2 * one["down_proj"].bytes


def test_a_latent_is_read_once(tiny):
    engine, config = tiny("DeepseekV3")
    found = by_name(profile(engine, Work(past_tokens=30), MACHINE, rounds=1))[ATTENTION]
    kept = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    assert found.bytes == 4 * 31 * kept * config["num_hidden_layers"]


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_pairs_and_tokens_by_counting(window):
    rng = np.random.default_rng(1)
    starts, counts = rng.integers(0, 20, 30), rng.integers(0, 12, 30)
    pairs = tokens = 0
    for start, count in zip(starts, counts):
        mask = attention.causal_mask(int(count), int(start + count), window)
        pairs += mask.sum()
        tokens += mask.any(axis=0).sum()
    assert attended(starts, counts, window) == (pairs, tokens)


def test_windows_limit_what_attention_must_read(tiny):
    engine, _ = tiny("Mistral", sliding_window=9)
    config = engine.config
    found = by_name(profile(engine, Work(past_tokens=40), MACHINE, rounds=1))[ATTENTION]
    assert found.bytes == config.num_hidden_layers * 9 * 8 * config.num_key_value_heads * (
        config.head_dim)
    assert found.flops == config.num_hidden_layers * 9 * 4 * config.num_attention_heads * (
        config.head_dim)


def test_operators_and_what_lies_between_are_the_step(tiny):
    """With a clock that goes one second further whenever it is looked at, an operator takes a
    second, and so does each space between two; watching itself takes no time of the step."""
    engine, _ = tiny("Llama", head_dim=10)
    made = profile(engine, Work(past_tokens=5), MACHINE, rounds=3,
                   clock=itertools.count().__next__)
    assert all(each.seconds == each.calls for each in made.operators[:-1])
    calls = sum(each.calls for each in made.operators)
    assert made.operators[-1] == Operator(BETWEEN, 0, calls + 1)
    assert made.whole.seconds == 2 * calls + 1
    assert made.unwatched_seconds == 1


def test_the_parts_of_a_real_step_are_nearly_all_of_it(smollm2):
    """What is stated: watched operators take at least 70 % of the step's time, the rest is
    Python between them."""
    made = profile(smollm2.model, Work(past_tokens=64), MACHINE, rounds=8)
    operators = sum(each.seconds for each in made.operators[:-1])
    assert 0.7 <= operators / made.whole.seconds <= 1
    assert made.unwatched_seconds > 0


def test_the_slow_and_the_fast_quarter_do_not_count():
    seconds = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]
    steps = [[Operator("a", 1, each, 10, 20), Operator(BETWEEN, 0, 0.5)] for each in seconds]
    assert _middle(steps) == [Operator("a", 1, 4.5, 10, 20), Operator(BETWEEN, 0, 0.5)]


def test_another_engine_is_refused(tiny_model):
    _, folder = tiny_model("Llama", 3)
    numpys = Model.load(folder)
    for engine in (SimpleNamespace(config=numpys.config, weights={}),
                   load_model(folder, "torch")):
        with pytest.raises(ModelError, match="cannot profile this engine"):
            profile(engine, Work(), MACHINE)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("work", [Work(past_tokens=40), Work(batch=3, past_tokens=20),
                                  Work(new_tokens=9, past_tokens=4)],
                         ids=lambda work: work.name)
def test_the_compiled_engine_counts_alike(tiny_model, mode, work):
    engines = pytest.importorskip("gearworks.kernels.cpu.model", reason="needs Numba")
    hf, folder = tiny_model("Qwen2", 5, head_dim=32, hidden_size=64, num_attention_heads=4,
                            intermediate_size=96, vocab_size=208)
    shape = ModelShape.from_hf(hf.config.to_dict())
    compiled = engines.CompiledModel.load(folder, mode)
    made = profile(compiled, work, MACHINE, rounds=2)
    # sizes that fill blocks and groups; no weights are quantized, so all take four bytes
    assert made.whole.bytes == bytes_moved(shape, "float32", work.batch, work.new_tokens,
                                           work.past_tokens, "float32")
    # its last layer computes all rows, its head those that are wanted
    assert made.whole.flops == work.batch * forward_flops(shape, work.new_tokens,
                                                          work.past_tokens)
    names = [each.name for each in made.operators]
    assert len(set(names)) == len(names) and names[-1] == BETWEEN
    assert {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"} < set(names)
    assert "_run" not in vars(compiled)                     # nothing is left of the watch


@pytest.mark.parametrize("family", ["Mixtral", "GptOss", "DeepseekV3", "Gemma2", "GPT2"])
def test_the_compiled_engine_counts_what_other_families_compute(tiny_model, family):
    """Of experts, those that the step's tokens have chosen."""
    engines = pytest.importorskip("gearworks.kernels.cpu.model", reason="needs Numba")
    compiled = engines.CompiledModel.load(tiny_model(family, 5)[1])
    config, T = compiled.config, 3
    made = profile(compiled, Work(new_tokens=T, past_tokens=4), MACHINE, rounds=1)
    operators = {each.name: each for each in made.operators}
    D, F, k, dense = config.hidden_size, config.intermediate_size, 0, config.num_hidden_layers
    if config.experts is not None:
        k, each = config.experts.num_experts_per_tok, config.experts.intermediate_size
        sparse = sum(config.experts.sparse_layers)
        dense -= sparse
        assert operators["router"].calls == sparse
    expected = 2 * T * D * F * dense + (2 * T * k * D * each * sparse if k else 0)
    assert operators["down_proj"].flops == expected
    if k:       # each of a few experts once, however many tokens visit it
        one = operators["down_proj"].bytes / operators["down_proj"].calls
        assert one <= 4 * config.experts.num_experts * (D + 15) * (each + 31)
        assert operators["down_proj"].bytes > 0
    if config.latent is not None:
        assert operators["kv_b_proj"].flops == 2 * T * config.num_hidden_layers * (
            config.num_attention_heads * config.latent.kv_lora_rank
            * (config.latent.qk_nope_head_dim + config.latent.v_head_dim))
    assert operators["activation"].calls >= config.num_hidden_layers
    assert all(each.seconds >= 0 for each in made.operators)


def test_a_quantized_matrix_counts_in_its_own_bits(smollm2_gguf):
    engines = pytest.importorskip("gearworks.kernels.cpu.model", reason="needs Numba")
    compiled = engines.CompiledModel.load(smollm2_gguf)
    made = profile(compiled, Work(past_tokens=1), MACHINE, rounds=1)
    found = by_name(made)
    D, F = 576, 1536
    # codes of 4 bits; a scale and a minimum in float32 for each 32 of them
    assert found["down_proj"].bytes == 30 * D * F * (0.5 + 8 / 32)
    assert found["gate_up_proj"].bytes == 2 * found["down_proj"].bytes
    json.dumps(made.as_json())


def test_watching_changes_neither_logits_nor_the_engine(tiny):
    engine, _ = tiny("Llama", head_dim=10)
    ids, positions = np.arange(9), np.arange(9)
    expected = engine.forward(ids, positions, engine.new_cache(9))
    before = {name: dict(vars(module)) for name, module in sys.modules.items()
              if name.startswith("gearworks")}
    watch = watching.Watch()
    with watching.watched(watch, engine.weights):
        assert model.linear is moe.linear is layers.linear
        assert model.linear.__wrapped__ is before["gearworks.layers"]["linear"]
        got = engine.forward(ids, positions, engine.new_cache(9))
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(ZeroDivisionError), watching.watched(watch, engine.weights):
        raise ZeroDivisionError
    for name, attributes in before.items():
        for attribute, value in attributes.items():
            assert getattr(sys.modules[name], attribute) is value


def test_an_operator_inside_another_is_a_part_of_it():
    watch = watching.Watch(itertools.count().__next__)
    inner = watch.around(lambda: 3, lambda: ("inner", 1, 1))
    outer = watch.around(lambda: inner() + inner(), lambda: ("outer", 10, 100))
    assert outer() == 6 and inner() == 3
    assert watch.operators() == [Operator("outer", 1, 1, 10, 100),
                                 Operator("inner", 1, 1, 1, 1)]
    failing = watch.around(lambda: 1 / 0, lambda: ("failing", 0, 0))
    with pytest.raises(ZeroDivisionError):
        failing()
    assert inner() == 3 and watch.operators()[-1].calls == 2      # nothing is left open


def test_the_machine_is_what_was_timed():
    found = measure_machine(threads=3, clock=itertools.count().__next__, read_bytes=4_000,
                            side=8)
    assert found == Machine(bandwidth=4_000, flops_per_second=1_024, threads=3)
    assert limits(found) == ("This machine reads 0.0 GB/s from memory (3 threads) and computes "
                             "0 GFLOP/s.")


def test_the_table_and_the_shares():
    operators = (Operator("lm_head", 1, 0.010, 100_000_000, 50_000_000),
                 Operator("rope", 30, 0.002), Operator(BETWEEN, 0, 0.0))
    made = Profile(Work(past_tokens=7), operators, 0.011, MACHINE)
    assert [made.share_of_roof(each) for each in (*operators, made.whole)] == [
        pytest.approx(share) for share in (0.5, 0, 0, 5 / 12)]
    assert made.table().splitlines() == [
        "decode, batch 1, after 7 tokens: 12.0 ms, 83 tokens/s (11.0 ms unwatched)",
        "operator      calls     ms  share      MB  GB/s  MFLOP  GFLOP/s  of the roof",
        "lm_head           1  10.00    83%  100.00  10.0   50.0      5.0          50%",
        "rope             30   2.00    17%",
        "between them          0.00     0%",
        "-" * 76,
        "all              31  12.00   100%  100.00   8.3   50.0      4.2          42%"]
    told = json.loads(json.dumps(made.as_json()))
    assert told["work"] == {"batch": 1, "new_tokens": 1, "past_tokens": 7,
                            "name": "decode, batch 1, after 7 tokens"}
    assert told["operators"][0] == dataclasses.asdict(operators[0]) | {"share_of_roof": 0.5}
    assert told["step"]["seconds"] == 0.012 and told["unwatched_seconds"] == 0.011


def test_a_context_that_is_too_short_is_refused(tiny):
    engine, _ = tiny("Llama", head_dim=10)
    with pytest.raises(ModelError, match="made for 256"):
        profile(engine, Work(past_tokens=256), MACHINE)


def test_the_command_prints_tables_json_and_a_page(tiny_model, tmp_path):
    _, folder = tiny_model("Llama", 6)

    def run(*arguments):
        command = [sys.executable, "-m", "gearworks", "profile", str(folder), "--rounds", "2",
                   "--context", "20", "--batch", "3", *arguments]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout
    told = run("--prefill", "40", "--figure", str(tmp_path / "profile.html"))
    assert [line.split(":")[0] for line in told.splitlines() if "tokens/s" in line] == [
        "decode, batch 1, after 20 tokens", "decode, batch 3, after 20 tokens",
        "prefill of 40 tokens"]
    assert told.splitlines()[-1].startswith("This machine reads ")
    page = (tmp_path / "profile.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "prefill of 40 tokens" in page
    figures = json.loads(run("--json"))
    assert figures["machine"]["bandwidth"] > 0 and figures["machine"]["flops_per_second"] > 0
    assert figures["profiles"][2]["work"]["new_tokens"] == 256      # all the model was made for
    assert figures["profiles"][0]["operators"][-1]["name"] == BETWEEN
