"""Processors against Hugging Face's, draws against their distribution, and the edges."""

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.sampling import (SamplingParams, choose, process, repetition_penalty, sample, temperature, top_k,
                                top_p)

V = 1013


def logits_of(rng, kind):
    x = rng.standard_normal((3, V)).astype(np.float32)
    return {"normal": x, "large": x * 200, "tiny": x * np.float32(1e-3),
            "impossible": np.where(rng.random((3, V)) < 0.9, np.float32(-np.inf), x)}[kind]


def by_hf(processor, logits, ids=None):
    ids = torch.zeros((len(logits), 1), dtype=torch.long) if ids is None else torch.tensor(ids)
    return processor(ids, torch.from_numpy(logits.copy())).numpy()


@pytest.mark.parametrize("kind", ["normal", "large", "tiny", "impossible"])
@pytest.mark.parametrize("ours, theirs", [
    (lambda x: temperature(x, 0.7), hf.TemperatureLogitsWarper(0.7)),
    (lambda x: temperature(x, 3.0), hf.TemperatureLogitsWarper(3.0)),
    (lambda x: top_k(x, 1), hf.TopKLogitsWarper(1)),
    (lambda x: top_k(x, 40), hf.TopKLogitsWarper(40)),
    (lambda x: top_k(x, 5000), hf.TopKLogitsWarper(5000)),
    (lambda x: top_p(x, 0.9), hf.TopPLogitsWarper(0.9)),
    (lambda x: top_p(x, 0.3), hf.TopPLogitsWarper(0.3)),
    (lambda x: top_p(x, 1e-6), hf.TopPLogitsWarper(1e-6)),
], ids=["temperature-0.7", "temperature-3", "top-k-1", "top-k-40", "top-k-all", "top-p-0.9", "top-p-0.3", "top-p-tiny"])
def test_processors_equal_hf(rng, kind, ours, theirs):
    logits = logits_of(rng, kind)
    before = logits.copy()
    result = ours(logits)
    np.testing.assert_allclose(result, by_hf(theirs, logits), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(ours(logits[1]), result[1])          # one sequence is as good as several
    assert result.dtype == np.float32


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_equals_hf(rng, penalty):
    logits, ids = logits_of(rng, "normal"), rng.integers(0, V, 50).tolist()
    ids += ids[:20]                                                    # a repeated id is punished once
    expected = by_hf(hf.RepetitionPenaltyLogitsProcessor(penalty), logits[:1], [ids])[0]
    np.testing.assert_allclose(repetition_penalty(logits[0], penalty, ids), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(repetition_penalty(logits[0], penalty, []), logits[0])


def test_all_processors_in_hf_order(rng):
    logits, ids = logits_of(rng, "normal")[:1], rng.integers(0, V, 9).tolist()
    expected = logits
    for processor in (hf.RepetitionPenaltyLogitsProcessor(1.5), hf.TemperatureLogitsWarper(0.6),
                      hf.TopKLogitsWarper(30), hf.TopPLogitsWarper(0.8)):
        expected = by_hf(processor, expected, [ids])
    ours = process(logits[0], SamplingParams(0.6, 30, 0.8, 1.5), ids)
    np.testing.assert_allclose(ours, expected[0], rtol=1e-6, atol=1e-6)


def test_top_k_keeps_ties():
    assert np.isfinite(top_k(np.array([2, 1, 2, 2, 0], np.float32), 2)).tolist() == [True, False, True, True, False]


def test_draws_follow_the_distribution(rng):
    """χ² over 20,000 draws, with the processors on; the 99.9 % quantile of 19 degrees of freedom is 43.8."""
    logits = rng.standard_normal(40).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_k=20)
    expected = 20_000 * softmax(process(logits, params, []))
    counts = np.bincount([choose(logits, params, [], rng) for _ in range(20_000)], minlength=40)
    possible = expected > 0
    assert possible.sum() == 20 and counts[~possible].sum() == 0
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 43.8


def test_same_seed_same_draws_and_greedy_draws_nothing(rng):
    logits = rng.standard_normal((8, V)).astype(np.float32)
    warm, greedy = SamplingParams(temperature=1.0), SamplingParams()
    first, second = np.random.default_rng(5), np.random.default_rng(5)
    assert [choose(x, warm, [], first) for x in logits] == [choose(x, warm, [], second) for x in logits]
    state = first.bit_generator.state
    assert [choose(x, greedy, [], first) for x in logits] == logits.argmax(-1).tolist()
    assert first.bit_generator.state == state
    sample(logits[0], second)
    assert first.random() != second.random()


def test_a_draw_never_lands_on_the_impossible():
    class Stub:
        def __init__(self, value): self.value = value
        def random(self): return self.value
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    assert [sample(logits, Stub(value)) for value in (0.0, 0.4999, 0.5, 1 - 2 ** -53)] == [1, 1, 3, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "warm"])
def test_broken_logits_are_an_error(rng, bad, params):
    logits = rng.standard_normal(V).astype(np.float32)
    logits[17] = bad
    with pytest.raises(ModelError, match="cannot choose a token"):
        choose(logits, params, [], rng)
    with pytest.raises(ModelError, match="-inf"):
        choose(np.full(V, -np.inf, np.float32), params, [], rng)


@pytest.mark.parametrize("settings", [
    {"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": -1}, {"top_p": 0.0},
    {"top_p": 1.5}, {"repetition_penalty": 0.0}, {"seed": -3}], ids=str)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ModelError, match=next(iter(settings))):
        SamplingParams(**settings)
