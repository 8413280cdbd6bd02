"""Beam search against Hugging Face's, on tiny models, whose texts end at many places,
and the real one. About 9 s."""

import itertools

import numpy as np
import pytest
import torch

from gearworks.beam import Hypothesis, beam_search, best_continuations
from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.sampling import log_softmax


def by_hf(network, ids, num_beams, max_tokens, eos_ids, length_penalty):
    out = network.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        num_beams=num_beams, max_new_tokens=max_tokens, eos_token_id=eos_ids or None,
        pad_token_id=0, do_sample=False, length_penalty=length_penalty,
        num_return_sequences=num_beams, return_dict_in_generate=True, output_scores=True)
    texts = []
    for row in out.sequences[:, len(ids):].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in eos_ids), len(row))
        texts.append(tuple(row[:end]))
    return texts, out.sequences_scores.tolist()


@pytest.mark.parametrize("seed, num_beams, eos_count, length_penalty",
                         [(0, 2, 5, 1.0), (1, 2, 1, 1.0), (2, 4, 3, 1.0), (3, 5, 20, 1.0),
                          (4, 3, 40, 0.0), (5, 3, 40, 2.0), (6, 4, 0, 1.0), (7, 6, 60, -1.0)])
def test_beams_equal_hf(tiny_llama, rng, seed, num_beams, eos_count, length_penalty):
    network, folder = tiny_llama(40 + seed, num_hidden_layers=2,
                                 tie_word_embeddings=bool(seed % 2))
    model = Model.load(folder)
    for _ in range(3):
        ids = rng.integers(0, 211, 7).tolist()
        eos_ids = rng.choice(211, eos_count, replace=False).tolist()
        texts, scores = by_hf(network, ids, num_beams, 12, eos_ids, length_penalty)
        found = beam_search(model, ids, num_beams, 12, eos_ids, length_penalty)
        assert [hypothesis.ids for hypothesis in found] == texts
        np.testing.assert_allclose([hypothesis.score for hypothesis in found], scores, rtol=0,
                                   atol=1e-4)


def test_on_the_real_model(smollm2, hf_smollm2):
    ids = smollm2.tokenizer.encode("The three primary colours are")
    texts, _ = by_hf(hf_smollm2, ids, 3, 12, sorted(smollm2.eos_ids), 1.0)
    assert [hypothesis.ids
            for hypothesis in beam_search(smollm2.model, ids, 3, 12, smollm2.eos_ids)] == texts


def test_as_many_beams_as_texts_find_the_likeliest(tiny_llama, rng):
    """Against all texts of three tokens of a small vocabulary."""
    _, folder = tiny_llama(50, vocab_size=5, num_hidden_layers=1)
    model, ids = Model.load(folder), [1, 3]
    best = []
    for text in itertools.product(range(5), repeat=3):
        logits = log_softmax(model.forward(np.array([*ids, *text[:2]]), np.arange(4),
                                           model.new_cache(4)))
        best.append((float(sum(logits[1 + place, token] for place, token in enumerate(text))),
                     text))
    best = sorted(best, reverse=True)[:25]
    found = beam_search(model, ids, 25, 3, length_penalty=0.0)
    assert [hypothesis.ids for hypothesis in found] == [text for _, text in best]


def test_ties_go_to_the_lower_beam_and_id():
    flat = np.zeros((2, 3), np.float32)
    found = best_continuations([Hypothesis((7,), -1.0), Hypothesis((8,), -1.0)], flat, 4)
    assert ([(beam, hypothesis.ids) for beam, hypothesis in found]
            == [(0, (7, 0)), (0, (7, 1)), (0, (7, 2)), (1, (8, 0))])


def test_more_beams_than_tokens_and_an_eos_everywhere(tiny_llama):
    model = Model.load(tiny_llama(52, vocab_size=5)[1])
    assert len({hypothesis.ids for hypothesis in beam_search(model, [1, 3], 9, 4, [2])}) == 9
    # nothing can go on after the first token
    found = beam_search(model, [1, 3], 3, 4, range(5))
    assert len(found) == 3 and all(len(hypothesis.ids) == 1 for hypothesis in found)


def test_the_context_is_the_last_limit(tiny_llama):
    model = Model.load(tiny_llama(53, max_position_embeddings=16)[1])
    assert {len(hypothesis.ids) for hypothesis in beam_search(model, [1] * 12, 2, 9)} == {4}
    with pytest.raises(ModelError, match="the prompt has 16 tokens, and the context 16"):
        beam_search(model, [1] * 16, 2, 9)


def test_broken_logits_are_an_error(tiny_llama):
    model = Model.load(tiny_llama(54)[1])
    model.weights.norm[:] = np.nan
    with pytest.raises(ModelError, match="cannot choose a token"):
        beam_search(model, [1, 2], 2, 3)


@pytest.mark.parametrize("ids, num_beams, max_tokens, why", [
    ([], 1, 1, "the prompt is empty"), ([1], 0, 1, "there are 0 beams, and 1 tokens to come"),
    ([1], 1, 0, "there are 1 beams, and 0 tokens to come")])
def test_nothing_to_search_is_refused(tiny_llama, ids, num_beams, max_tokens, why):
    with pytest.raises(ModelError, match=why):
        beam_search(Model.load(tiny_llama(51)[1]), ids, num_beams, max_tokens)
