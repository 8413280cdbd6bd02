"""Processors against Hugging Face's, draws against their distribution,
and the edges. About 6 s."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as hf

from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.sampling import (ORDERS, SamplingParams, allow_only, choose, logit_bias,
                                logprobs, min_p, presence_frequency, process, refuse_unusable,
                                repetition_penalty, sample, shortlist, temperature, top_k,
                                top_p, typical)

V = 1013


def logits_of(rng, kind):
    x = rng.standard_normal((3, V)).astype(np.float32)
    return {"normal": x, "large": x * 200, "tiny": x * np.float32(1e-3),
            "impossible": np.where(rng.random((3, V)) < 0.9, np.float32(-np.inf), x),
            "one": np.where(np.arange(V) == [[5], [0], [V - 1]], x, np.float32(-np.inf)),
            "a row of nothing": np.where([[False], [True], [False]], np.float32(-np.inf),
                                         x)}[kind]


def by_hf(processor, logits, ids=None):
    ids = torch.zeros((len(logits), 1), dtype=torch.long) if ids is None else torch.tensor(ids)
    return processor(ids, torch.from_numpy(logits.copy())).numpy()


@pytest.mark.parametrize("kind",
                         ["normal", "large", "tiny", "impossible", "one", "a row of nothing"])
@pytest.mark.parametrize("ours, theirs",
                         [(lambda x: temperature(x, 1e-6), hf.TemperatureLogitsWarper(1e-6)),
                          (lambda x: temperature(x, 0.7), hf.TemperatureLogitsWarper(0.7)),
                          (lambda x: temperature(x, 3.0), hf.TemperatureLogitsWarper(3.0)),
                          (lambda x: top_k(x, 1), hf.TopKLogitsWarper(1)),
                          (lambda x: top_k(x, 40), hf.TopKLogitsWarper(40)),
                          (lambda x: top_k(x, V), hf.TopKLogitsWarper(V)),
                          (lambda x: top_k(x, 5000), hf.TopKLogitsWarper(5000)),
                          (lambda x: top_p(x, 0.9), hf.TopPLogitsWarper(0.9)),
                          (lambda x: top_p(x, 0.3), hf.TopPLogitsWarper(0.3)),
                          (lambda x: top_p(x, 1e-6), hf.TopPLogitsWarper(1e-6)),
                          (lambda x: top_p(x, 1e-9), hf.TopPLogitsWarper(1e-9)),
                          (lambda x: top_p(x, 0.9999), hf.TopPLogitsWarper(0.9999)),
                          (lambda x: min_p(x, 0.05), hf.MinPLogitsWarper(0.05)),
                          (lambda x: min_p(x, 1.0), hf.MinPLogitsWarper(1.0)),
                          (lambda x: min_p(x, 0.0), hf.MinPLogitsWarper(0.0)),
                          (lambda x: logit_bias(x, {3: 2.5, 100: -100.0}),
                           hf.SequenceBiasLogitsProcessor([[[3], 2.5], [[100], -100.0]]))],
                         ids=["temperature-tiny", "temperature-0.7", "temperature-3", "top-k-1",
                              "top-k-40", "top-k-V", "top-k-more", "top-p-0.9", "top-p-0.3",
                              "top-p-tiny", "top-p-least", "top-p-almost-all", "min-p-0.05",
                              "min-p-1", "min-p-0", "logit-bias"])
def test_processors_equal_hf(rng, kind, ours, theirs):
    logits = logits_of(rng, kind)
    before = logits.copy()
    result = ours(logits)
    np.testing.assert_allclose(result, by_hf(theirs, logits), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(logits, before)
    # one sequence is as good as several
    np.testing.assert_array_equal(ours(logits[1]), result[1])
    assert result.dtype == np.float32 and not np.shares_memory(result, logits)


@pytest.mark.parametrize("kind", ["normal", "large", "impossible", "one", "a row of nothing"])
@pytest.mark.parametrize("p", [0.9999, 0.9, 0.2, 0.01])
def test_typical_equals_hf(rng, kind, p):
    """Not of tiny logits: there all surprises are equal but for the rounding,
    which decides who is closest."""
    logits = logits_of(rng, kind)
    np.testing.assert_allclose(typical(logits, p), by_hf(hf.TypicalLogitsWarper(p), logits),
                               rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_equals_hf(rng, penalty):
    logits, ids = logits_of(rng, "normal"), rng.integers(0, V, 50).tolist()
    ids += ids[:20]                                             # a repeated id is punished once
    expected = by_hf(hf.RepetitionPenaltyLogitsProcessor(penalty), logits[:1], [ids])[0]
    np.testing.assert_allclose(repetition_penalty(logits[0], penalty, ids), expected, rtol=1e-6,
                               atol=1e-6)
    np.testing.assert_array_equal(repetition_penalty(logits[0], penalty, []), logits[0])


def test_penalties_of_several_rows_take_each_its_own_ids(rng):
    # row numbers as well
    logits, ids = logits_of(rng, "normal"), rng.integers(0, 9, (3, 20)).tolist()
    before = logits.copy()
    expected = by_hf(hf.RepetitionPenaltyLogitsProcessor(1.3), logits, ids)
    np.testing.assert_allclose(repetition_penalty(logits, 1.3, ids), expected, rtol=1e-6,
                               atol=1e-6)
    ids = [ids[0], [], ids[2][:5]]                                      # texts of any lengths
    for penalize in (lambda x, ids: repetition_penalty(x, 1.3, ids),
                     lambda x, ids: presence_frequency(x, 0.3, 0.7, ids)):
        result = penalize(logits, ids)
        np.testing.assert_array_equal(result,
                                      [penalize(row, each) for row, each in zip(logits, ids)])
        assert result.dtype == np.float32
    np.testing.assert_array_equal(logits, before)


def test_new_logits_even_where_nothing_is_asked_for(rng):
    logits = logits_of(rng, "normal")[0]
    for result in (process(logits, SamplingParams(), []), logit_bias(logits, {}),
                   repetition_penalty(logits, 1.3, []),
                   presence_frequency(logits, 0.3, 0.7, []),
                   allow_only(logits, np.ones(V, bool))):
        np.testing.assert_array_equal(result, logits)
        assert not np.shares_memory(result, logits)


def test_all_processors_in_hf_order(rng):
    logits, ids = logits_of(rng, "normal")[:1], rng.integers(0, V, 9).tolist()
    expected, allowed = logits, rng.random(V) < 0.5
    for processor in (hf.SequenceBiasLogitsProcessor([[[5], 3.0], [[ids[0]], 4.0]]),
                      hf.RepetitionPenaltyLogitsProcessor(1.5),
                      hf.PrefixConstrainedLogitsProcessor(lambda batch, text: np.flatnonzero(
                          allowed).tolist(), 1), hf.TemperatureLogitsWarper(0.6),
                      hf.TopKLogitsWarper(30), hf.TopPLogitsWarper(0.8),
                      hf.MinPLogitsWarper(0.02), hf.TypicalLogitsWarper(0.9)):
        expected = by_hf(processor, expected, [ids])
    params = SamplingParams(0.6, 30, 0.8, 1.5, min_p=0.02, typical_p=0.9,
                            logit_bias={5: 3.0, ids[0]: 4.0})
    ours = process(logits[0], params, ids, allowed=allowed)
    np.testing.assert_allclose(ours, expected[0], rtol=1e-6, atol=1e-6)
    assert 1 < np.isfinite(ours).sum() < 30


@pytest.mark.parametrize("k", [1, 7, 40, 70, 200, 9999])
@pytest.mark.parametrize("kind", ["normal", "ties", "steep", "impossible", "all at the end"])
def test_a_short_list_is_as_good_as_the_whole_vocabulary(rng, kind, k):
    """`process` looks at what top-k could leave alone;
    each processor by itself, over all tokens, leaves the same."""
    size = 5003
    logits = (3 * rng.standard_normal(size)).astype(np.float32)
    logits = {"normal": logits, "ties": np.round(logits), "steep": logits * 50,
              "all at the end": np.arange(size, dtype=np.float32),
              "impossible": np.where(rng.random(size) < 0.99, np.float32(-np.inf),
                                     logits)}[kind]
    expected = temperature(logits, 0.7)
    expected = typical(min_p(top_p(top_k(expected, k), 0.95), 0.01), 0.9)
    params = SamplingParams(0.7, k, 0.95, min_p=0.01, typical_p=0.9)
    np.testing.assert_array_equal(process(logits, params, []), expected)
    np.testing.assert_array_equal(process(logits, SamplingParams(1.0, k), []), top_k(logits, k))


def test_the_documented_order_is_transformers_own(tiny_llama):
    """`ORDERS` names what the list of processors of transformers holds, in its order."""
    network, _ = tiny_llama(70)
    settings = GenerationConfig(do_sample=True, temperature=0.6, top_k=30, top_p=0.8,
                                min_p=0.02, typical_p=0.9, repetition_penalty=1.5,
                                sequence_bias=[[[5], 3.0]], num_beams=1, num_return_sequences=1)
    settings._eos_token_tensor = torch.tensor([2])
    processors = network._get_logits_processor(settings, input_ids_seq_length=3,
                                               prefix_allowed_tokens_fn=lambda batch, text: [1],
                                               device="cpu", model_kwargs={})
    names = {"SequenceBias": "logit bias", "RepetitionPenalty": "repetition penalty",
             "PrefixConstrained": "allowed tokens", "Temperature": "temperature",
             "TopK": "top-k", "TopP": "top-p", "MinP": "min-p", "Typical": "typical"}
    found = [names[next(name for name in names if type(processor).__name__.startswith(name))]
             for processor in processors]
    assert tuple(found) == ORDERS["Hugging Face"]


def test_presence_and_frequency_by_openais_formula(rng):
    logits, generated = logits_of(rng, "normal")[0], rng.integers(0, 30, 50).tolist()
    expected = [logit - generated.count(id) * 0.7 - (id in generated) * 0.3
                for id, logit in enumerate(logits.tolist())]
    np.testing.assert_allclose(presence_frequency(logits, 0.3, 0.7, generated), expected,
                               rtol=0, atol=1e-5)
    prompt = [40, 41, 42]
    params = SamplingParams(presence_penalty=0.3, frequency_penalty=0.7)
    result = process(logits, params, [*prompt, *generated], generated)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)  # the prompt does not count


def test_only_one_possible_token_stays_possible():
    logits = np.full(V, -np.inf, np.float32)
    logits[77] = -3
    params = SamplingParams(0.7, 40, 0.9, 1.2, min_p=0.1, typical_p=0.5)
    assert np.flatnonzero(np.isfinite(process(logits, params, [1]))).tolist() == [77]
    assert choose(logits, params, [1], np.random.default_rng(0)) == 77


@pytest.mark.parametrize("values", [0, [0, 1], [3, 2, 2, 1], [-0.0, 0.0]],
                         ids=["flat", "two", "stairs", "zeros"])
@pytest.mark.parametrize(
    "ours, theirs",
    [*((lambda x, k=k: top_k(x, k), hf.TopKLogitsWarper(k)) for k in (1, 3, 20)),
     *((lambda x, p=p: top_p(x, p), hf.TopPLogitsWarper(p))
       for p in (1e-9, 1e-6, 0.1, 0.35, 0.55, 0.9, 1.0)),
     *((lambda x, p=p: min_p(x, p), hf.MinPLogitsWarper(p)) for p in (1e-9, 0.3, 1.0)),
     *((lambda x, p=p: typical(x, p), hf.TypicalLogitsWarper(p))
       for p in (1e-9, 0.1, 0.35, 0.9))])
def test_ties_are_treated_as_hf_treats_them(values, ours, theirs):
    """As many tokens stay, and as likely ones.
    Which of several that are tied at top-p's border is up to HF's sort."""
    logits = np.tile(np.ravel(values), (2, 24 // np.size(values))).astype(np.float32)
    result, expected = ours(logits), by_hf(theirs, logits)
    np.testing.assert_array_equal(np.sort(result), np.sort(expected))
    assert np.isfinite(result).any(axis=-1).all()


@pytest.mark.parametrize("spread", [0, 0.1, 1, 3])
def test_top_p_adds_up_as_exactly_as_hf(rng, spread):
    """Over a large vocabulary sums in float32 drift by hundreds of tokens;
    the number that stays is Hugging Face's.

    Give or take a few tokens, or a millionth of the probability, which float32 may lose.
    """
    logits = (spread * rng.standard_normal((1, 150_000))).astype(np.float32)
    probabilities = np.sort(softmax(logits[0]))[::-1]
    for p in (1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999, 0.99999, 1.0):
        left = [int(np.isfinite(kept).sum())
                for kept in (top_p(logits, p), by_hf(hf.TopPLogitsWarper(p), logits))]
        between = probabilities[min(left):max(left)]
        assert len(between) <= 25 or between.sum() <= 1e-6, p


@pytest.mark.parametrize("kind", ["normal", "tiny", "impossible", "one", "a row of nothing"])
def test_a_top_p_of_one_keeps_every_possible_token(rng, kind):
    """But for those whose probability float32 cannot tell from 0, which large logits have:
    Hugging Face drops them."""
    logits = logits_of(rng, kind)
    np.testing.assert_array_equal(top_p(logits, 1.0), logits)


def test_of_tokens_tied_at_the_border_of_top_p_the_higher_ids_stay():
    assert (np.flatnonzero(np.isfinite(top_p(np.zeros(8, np.float32), 0.3))).tolist()
            == [5, 6, 7])
    assert (np.flatnonzero(np.isfinite(top_p(np.zeros(50_000, np.float32), 1e-9))).tolist()
            == [49_999])


def test_a_temperature_near_zero_is_greedy(rng):
    logits = rng.standard_normal(V).astype(np.float32)
    assert choose(logits, SamplingParams(temperature=1e-6), [], rng) == logits.argmax()


def test_logprobs_are_one_array(rng):
    logits = logits_of(rng, "normal")[0]
    expected = torch.from_numpy(logits).log_softmax(-1).numpy()
    for token in (int(logits.argmax()), 5):
        found = logprobs(logits, token, top=6)
        assert found.id == token and found.logprob == pytest.approx(expected[token], abs=1e-5)
        assert [id for id, _ in found.top] == np.argsort(-expected, kind="stable")[:6].tolist()
        assert dict(found.top).get(token, found.logprob) == found.logprob
    assert (logprobs(np.zeros(4, np.float32), 3, top=9).top[0][0] == 0
            and logprobs(logits, 5).top == ())


@pytest.mark.reference("speed")
def test_no_processor_sorts_the_whole_vocabulary(rng, monkeypatch):
    """What is sorted is what can still win:
    a few hundred of 151,936 tokens, of logits as models have them."""
    logits = (2 * rng.standard_normal(151_936)).astype(np.float32)
    logits[rng.integers(0, len(logits), 60)] += np.linspace(5, 15, 60, dtype=np.float32)
    sizes, argsort = [], np.argsort

    def counted(array, *arguments, **options):
        sizes.append(np.size(array))
        return argsort(array, *arguments, **options)
    monkeypatch.setattr(np, "argsort", counted)
    choose(logits, SamplingParams(0.8, 0, 0.9, 1.1, min_p=0.05, typical_p=0.95), [1, 2, 3], rng)
    logprobs(logits, 3, top=20)
    assert sizes and max(sizes) < 15_000


def test_top_k_keeps_ties():
    assert (np.isfinite(top_k(np.array([2, 1, 2, 2, 0], np.float32), 2)).tolist()
            == [True, False, True, True, False])


def test_draws_follow_the_distribution(rng):
    """χ² over 20,000 draws, with the processors on;
    the 99.9 % quantile of 19 degrees of freedom is 43.8."""
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
    assert ([choose(x, warm, [], first) for x in logits]
            == [choose(x, warm, [], second) for x in logits])
    state = first.bit_generator.state
    assert [choose(x, greedy, [], first) for x in logits] == logits.argmax(-1).tolist()
    assert first.bit_generator.state == state
    first.random()
    sample(logits[0], second)                                           # one number a token
    assert first.bit_generator.state == second.bit_generator.state


@pytest.mark.reference("the generator's method that draws")
def test_a_draw_never_lands_on_the_impossible():
    class Stub:
        def __init__(self, value): self.value = value
        def random(self): return self.value
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    assert ([sample(logits, Stub(value)) for value in (0.0, 0.4999, 0.5, 1 - 2 ** -53)]
            == [1, 1, 3, 3])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)],
                         ids=["greedy", "warm"])
def test_broken_logits_are_an_error(rng, bad, params):
    logits = rng.standard_normal(V).astype(np.float32)
    logits[17] = bad
    with pytest.raises(ModelError, match="cannot choose a token"):
        choose(logits, params, [], rng)
    for nothing in (V, 0):
        with pytest.raises(ModelError, match="-inf"):
            choose(np.full(nothing, -np.inf, np.float32), params, [], rng)


@pytest.mark.parametrize("left", [1, 3, 39, 41, 900])
def test_a_mask_that_leaves_few_tokens_leaves_few_to_look_at(rng, left):
    """A grammar often allows one token; the others are all tied for the 40th place,
    and must cost nothing."""
    allowed = np.isin(np.arange(49_152), rng.choice(49_152, left, replace=False))
    masked = allow_only(rng.standard_normal(49_152).astype(np.float32), allowed)
    looked_at = shortlist(masked, 40)
    assert {*looked_at} <= {*np.flatnonzero(allowed)} and len(looked_at) >= min(40, left)
    assert np.isfinite(process(masked, SamplingParams(1.0, 40, 0.9), [])).any()


@pytest.mark.reference("what a processor makes of nan")
def test_no_warper_hides_a_nan(rng):
    x = rng.standard_normal(V).astype(np.float32)
    x[3] = np.nan
    for warped in (temperature(x, 2.0), top_k(x, 5), typical(x, 0.5)):
        with pytest.raises(ModelError):
            sample(warped, rng)


def test_a_single_broken_row_is_found():
    for bad in (np.nan, np.inf):
        with pytest.raises(ModelError):
            refuse_unusable(np.array([[1, 2], [3, bad], [5, 6]], np.float32))
    with pytest.raises(ModelError, match="-inf"):
        refuse_unusable(np.array([[1, 2], [-np.inf, -np.inf]], np.float32))
    refuse_unusable(np.array([[1, -np.inf], [3e38, 3e38]], np.float32))


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")},
     {"top_k": -1}, {"top_k": 2.5}, {"seed": 1.5}, {"top_p": 0.0},
     {"top_p": 1.5}, {"repetition_penalty": 0.0}, {"seed": -3}, {"min_p": -0.1},
     {"typical_p": 0.0}, {"presence_penalty": float("nan")},
     {"frequency_penalty": float("inf")}, {"logit_bias": {3: float("nan")}},
     {"logit_bias": {3: 1e39}}, {"logit_bias": {3: float("inf")}}], ids=str)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ModelError, match=next(iter(settings))):
        SamplingParams(**settings)
