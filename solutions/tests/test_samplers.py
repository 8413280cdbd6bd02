"""Samplers of other engines, against the tables that llama.cpp's tests publish, and against
definitions written out. About 5 s."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearworks.cli.sampling import OTHERS
from gearworks.decoding import generate
from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.samplers import (BREAKERS, SETTINGS, OtherSamplers, breaking_ids, dry,
                                dynamic_temperature, hold_back, top_n_sigma, xtc)
from gearworks.sampling import SamplingParams, choose, process, temperature
from gearworks.speculative import distribution

RISING = [0.1, 0.2, 0.3, 0.4]


def logits_of(probabilities) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32))


def close(logits, probabilities):
    """As llama.cpp's tests compare."""
    np.testing.assert_allclose(softmax(logits), np.float32(probabilities), atol=1e-5)


# --- the tables of tests/test-sampling.cpp in ggml-org/llama.cpp


@pytest.mark.parametrize("count, ids, expected, multiplier, allowed, breakers", [
    (4, [0, 1], [0.25] * 4, 1.0, 2, ()),
    (4, [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, ()),
    (5, [0, 1, 3, 4, 0, 1], [0.2] * 5, 1.0, 2, {3}),
    (5, [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, ()),
    (5, [0, 1, 2, 3, 4, 0, 1], [0.2] * 5, 1.0, 4, ())])
def test_dry_as_in_llama_cpp(count, ids, expected, multiplier, allowed, breakers):
    flat = logits_of([1 / count] * count)
    close(dry(flat, ids, multiplier, 1.1, allowed, breakers), expected)


@pytest.mark.parametrize("n, expected", [(1.0, [0, 0, 0.428571, 0.571429]), (3.0, RISING)])
def test_top_n_sigma_as_in_llama_cpp(n, expected):
    close(top_n_sigma(logits_of(RISING), n), expected)


@pytest.mark.parametrize("threshold, left", [(0.09, 1), (0.19, 2), (0.29, 3), (0.39, 4)])
def test_xtc_as_in_llama_cpp(threshold, left):
    """Its table has the probabilities as they were before: so many of the last are left."""
    falling = logits_of(RISING[::-1])
    found = xtc(falling, threshold)
    np.testing.assert_array_equal(found[4 - left:], falling[4 - left:])
    assert (found[:4 - left] == -np.inf).all()


@pytest.mark.parametrize("settings", [{}, {"dynatemp_range": 0.0, "dynatemp_exponent": 1.0}])
def test_a_range_of_zero_is_the_plain_temperature_as_in_llama_cpp(settings):
    params = SamplingParams(1.0, others=OtherSamplers(**settings))
    close(process(logits_of(RISING), params, []), RISING)


# --- definitions


@given(st.lists(st.integers(0, 4), max_size=80), st.integers(1, 4),
       st.sets(st.integers(0, 4), max_size=2))
def test_dry_as_it_is_defined(ids, allowed, breakers):
    longest = [0] * 5
    for end in range(len(ids) - 1):
        length = 0
        while (length <= end and ids[end - length] == ids[-1 - length]
               and ids[-1 - length] not in breakers):
            length += 1
        if ids[end + 1] not in breakers:
            longest[ids[end + 1]] = max(longest[ids[end + 1]], min(length, 50))
    expected = [-1.5 * 1.75 ** (length - allowed) if length >= allowed else 0.0
                for length in longest]
    before = np.zeros(5, np.float32)
    np.testing.assert_allclose(dry(before, ids, 1.5, 1.75, allowed, breakers), expected,
                               rtol=1e-6)
    assert not before.any()


def test_the_longest_repeats_stay_finite():
    found = dry(np.zeros(2, np.float32), [0] * 5000, 1e6, 4.0)
    assert np.isfinite(found).all() and found[0] < -1e30 and found[1] == 0


@pytest.mark.parametrize("heat", [0.1, 1.0, 7.0])
def test_no_temperature_changes_what_top_n_sigma_keeps(rng, heat):
    logits = rng.standard_normal(500).astype(np.float32)
    logits[::7] = -np.inf
    kept = top_n_sigma(logits, 1.3) > -np.inf
    assert 0 < kept.sum() < 500 * 6 // 7
    np.testing.assert_array_equal(top_n_sigma(temperature(logits, heat), 1.3) > -np.inf, kept)
    possible = logits[logits > -np.inf].astype(np.float64)
    np.testing.assert_array_equal(kept, logits >= possible.max() - 1.3 * possible.std())


def test_dynamic_temperature_by_its_formula(rng):
    logits = rng.standard_normal(40).astype(np.float32)
    probabilities = softmax(logits).astype(np.float64)
    share = -(probabilities * np.log(probabilities)).sum() / math.log(40)
    for range_, exponent in ((0.5, 1.0), (0.5, 3.0), (2.0, 0.5), (0.5, 0.0)):
        least = max(0, 1 - range_)
        expected = least + (1 + range_ - least) * share ** exponent
        assert dynamic_temperature(logits, 1.0, range_, exponent) == pytest.approx(expected)
    with_impossible = np.append(logits, np.full(9, -np.inf, np.float32))
    assert dynamic_temperature(with_impossible, 1.0, 0.5) == pytest.approx(
        dynamic_temperature(logits, 1.0, 0.5))
    assert dynamic_temperature(np.float32([50, -50]), 1.0, 2.0) >= 1e-6
    assert dynamic_temperature(np.float32([-np.inf, 3]), 0.7, 0.5) == 0.7


def test_nothing_possible_stays_nothing_possible():
    nothing = np.full(4, -np.inf, np.float32)
    for found in (top_n_sigma(nothing, 1.0), hold_back(nothing, {1}),
                  dry(nothing, [1, 1], 1.0)):
        np.testing.assert_array_equal(found, nothing)
    only = np.float32([-np.inf, 2, -np.inf])
    np.testing.assert_array_equal(hold_back(only, {1}), only)


# --- where they are applied


def test_order_and_place(rng):
    """Penalties, then DRY, top-n-sigma, the temperature's size, truncation, and XTC last."""
    logits = rng.standard_normal(300).astype(np.float32) * 3
    ids, generated = [5, 6, 7, 5, 6], [5, 6]
    others = OtherSamplers(dry_multiplier=2.0, top_n_sigma=2.0, dynatemp_range=0.3,
                           min_tokens=3, ending_ids=frozenset({int(logits.argmax())}))
    expected = top_n_sigma(dry(hold_back(logits, others.ending_ids), ids, 2.0), 2.0)
    greedy = SamplingParams(others=others)
    np.testing.assert_array_equal(process(logits, greedy, ids, generated), expected)
    heat = dynamic_temperature(expected, 0.8, 0.3)
    params = SamplingParams(0.8, others=others)
    np.testing.assert_array_equal(process(logits, params, ids, generated),
                                  temperature(expected, heat))
    assert process(logits, params, ids, [1, 2, 3]).argmax() == logits.argmax()


def test_dry_looks_back_as_far_as_it_is_told():
    ids = [0, 1, 2, 3, 3, 0, 1]
    for last, penalized in ((-1, True), (7, True), (6, False), (0, False)):
        others = OtherSamplers(dry_multiplier=1.0, dry_penalty_last_n=last)
        found = process(np.zeros(4, np.float32), SamplingParams(others=others), ids)
        assert (found[2] < 0) == penalized, last


def test_xtc_comes_last_and_as_often_as_is_asked():
    logits = logits_of([0.5, 0.3, 0.15, 0.05])
    others = OtherSamplers(xtc_probability=0.25, xtc_threshold=0.2)
    rng = np.random.default_rng(0)
    params = SamplingParams(1.0, min_p=0.2, others=others)
    counts = np.bincount([choose(logits, params, [], rng) for _ in range(4000)], minlength=4)
    # min-p has seen the likeliest one: XTC after it lets nothing in that it has ruled out
    left = np.array([0.5, 0.3, 0.15]) / 0.95
    without = np.array([0, 0.3, 0.15]) / 0.45
    np.testing.assert_allclose(counts[:3] / 4000, 0.75 * left + 0.25 * without, atol=0.03)
    assert counts[3] == 0
    greedy = SamplingParams(others=OtherSamplers(xtc_probability=1.0))
    assert choose(logits, greedy, [], rng) == 0


def test_speculation_has_the_same_distribution():
    logits = logits_of([0.5, 0.3, 0.2])
    params = SamplingParams(1.0, others=OtherSamplers(xtc_probability=1.0, xtc_threshold=0.25))
    found = distribution(logits, params, [0], 1, np.random.default_rng(0))
    np.testing.assert_allclose(found, [0, 0.6, 0.4], atol=1e-6)


@pytest.mark.parametrize("settings", [
    {"dry_multiplier": -1}, {"dry_base": 0.5}, {"dry_base": 5}, {"dry_allowed_length": 0},
    {"dry_penalty_last_n": -2}, {"xtc_probability": 1.1}, {"xtc_threshold": -0.1},
    {"top_n_sigma": math.nan}, {"dynatemp_range": -1}, {"dynatemp_exponent": math.inf},
    {"min_tokens": 1.5}])
def test_values_without_a_meaning_are_refused(settings):
    [name] = settings
    with pytest.raises(ModelError, match=f"{name} is "):
        OtherSamplers(**settings)


def test_nothing_asked_for_is_nothing_to_do(tiny_chat):
    assert OtherSamplers().for_model(tiny_chat.tokenizer, BREAKERS, {1}) is None
    ready = OtherSamplers(min_tokens=2).for_model(tiny_chat.tokenizer, BREAKERS, {1})
    assert ready.ending_ids == {1} and ready.dry_breakers == frozenset()


def test_the_command_line_has_all_of_them_and_tells_their_defaults():
    assert {name for name, *_ in OTHERS} == {*SETTINGS}
    for name, _, _, words in OTHERS:
        for told in re.findall(r"\(default ([\d.]+)\)", words):
            assert float(told) == getattr(OtherSamplers(), name), name


# --- with SmolLM2


def test_dry_ends_a_loop_and_breakers_let_lists_be(smollm2):
    prompt = "My favourite colours are red, green, red, green, red,"

    def loops(**settings) -> int:
        """How often the commonest four tokens occur in the answer."""
        others = OtherSamplers(**settings).for_model(smollm2.tokenizer, BREAKERS,
                                                     smollm2.eos_ids)
        ids = generate(smollm2.model, smollm2.tokenizer, prompt,
                       params=SamplingParams(others=others), max_tokens=60).ids
        fours = [tuple(ids[place:place + 4]) for place in range(len(ids) - 3)]
        return max(map(fours.count, fours))
    assert loops() > 10 and loops(dry_multiplier=0.8) <= 4
    colon = smollm2.tokenizer.encode("a:")[-1]
    assert colon in breaking_ids(smollm2.tokenizer, BREAKERS)


def test_min_tokens_holds_the_end_back(smollm2):
    def ids(eos_id, **settings):
        others = OtherSamplers(**settings).for_model(smollm2.tokenizer, BREAKERS, {eos_id})
        return generate(smollm2.model, smollm2.tokenizer, "Once upon a time", eos_ids={eos_id},
                        params=SamplingParams(others=others), max_tokens=20).ids
    whole = ids(-1)
    end = next(place for place in range(3, 20) if whole[place] not in whole[:place])
    assert ids(whole[end]) == whole[:end]                   # it would end here
    later = ids(whole[end], min_tokens=end + 4)
    assert len(later) >= end + 4 and whole[end] not in later and later[:end] == whole[:end]
