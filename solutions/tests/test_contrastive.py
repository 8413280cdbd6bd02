"""Contrastive decoding and contrastive search, by their papers' formulas,
and Mirostat by its aim. About 8 s."""

import numpy as np
import pytest

from gearworks.contrastive import contrastive_decoding, contrastive_scores, contrastive_search
from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.sampling import mirostat, temperature


def test_contrastive_decoding_by_the_formula(rng):
    expert, amateur = rng.standard_normal((2, 90)).astype(np.float32) * 3
    p, q = softmax(expert).astype(np.float64), softmax(amateur).astype(np.float64)
    for alpha in (0.1, 0.5, 1.0):
        expected = [np.log(p[i] / q[i]) if p[i] >= alpha * p.max() * (1 - 1e-6) else -np.inf
                    for i in range(90)]
        result = contrastive_decoding(expert, amateur, alpha)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        assert result.dtype == np.float32


def test_contrastive_scores_by_the_formula(rng):
    probabilities = softmax(rng.standard_normal(4).astype(np.float32))
    candidates, past = (rng.standard_normal((count, 10)).astype(np.float32)
                        for count in (4, 7))

    def likeness(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))

    expected = [0.4 * p - 0.6 * max(likeness(c, s) for s in past)
                for p, c in zip(probabilities, candidates)]
    np.testing.assert_allclose(contrastive_scores(probabilities, candidates, past, 0.6),
                               expected, rtol=0, atol=1e-6)


def test_contrastive_search_by_the_definition(tiny_llama, rng):
    """Each step again, without a cache: the hidden states of all texts one token longer."""
    import torch
    network, folder = tiny_llama(60)
    model, ids = Model.load(folder), rng.integers(0, 211, 6).tolist()
    got, text = contrastive_search(model, ids, 8, k=5, alpha=0.7), list(ids)

    def states(ids):
        with torch.no_grad():
            out = network(torch.tensor([ids]), output_hidden_states=True)
        return out.hidden_states[-1][0].numpy(), out.logits[0, -1].numpy()
    for _ in range(8):
        past, logits = states(text)
        candidates = np.argsort(-logits, kind="stable")[:5]
        hidden = np.stack([states([*text, int(candidate)])[0][-1] for candidate in candidates])
        text.append(int(candidates[contrastive_scores(softmax(logits)[candidates], hidden, past,
                                                      0.7).argmax()]))
    assert got == text[6:]


def test_contrastive_search_without_contrast_is_greedy(smollm2):
    ids = smollm2.tokenizer.encode("Once upon a time, there was a")
    greedy = smollm2.generate("Once upon a time, there was a", max_tokens=10).ids
    assert contrastive_search(smollm2.model, ids, 10, alpha=0.0) == greedy
    assert contrastive_search(smollm2.model, ids, 10, alpha=0.9) != greedy


def test_contrastive_search_at_its_limits(tiny_llama):
    model = Model.load(tiny_llama(61, vocab_size=9, max_position_embeddings=16)[1])
    assert len(contrastive_search(model, [1, 2], 5, k=300)) == 5   # more candidates than tokens
    assert len(contrastive_search(model, [1] * 12, 9)) == 4             # the context is full
    assert contrastive_search(model, [1, 2], 0) == []
    for ids, k in (([], 4), ([1], 0)):
        with pytest.raises(ModelError,
                           match=f"{k} candidates, and {len(ids)} tokens in the prompt"):
            contrastive_search(model, ids, 3, k=k)
    model.weights.norm[:] = np.nan
    with pytest.raises(ModelError, match="cannot choose a token"):
        contrastive_search(model, [1, 2], 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("logits", [[1, np.nan], [1, np.inf], [-np.inf, -np.inf], []], ids=str)
def test_mirostat_refuses_broken_logits(logits, rng):
    with pytest.raises(ModelError, match="cannot choose a token"):
        mirostat(np.array(logits, np.float32), 6.0, 3.0, 0.1, rng)


@pytest.mark.parametrize("tau", [1.5, 3.0, 5.0])
def test_mirostat_keeps_the_surprise_that_is_wanted(tau, rng):
    """Over many steps, the mean surprise of what was drawn comes to tau,
    whatever the logits."""
    mu, surprises = 2 * tau, []
    for step in range(1500):
        logits = temperature(rng.standard_normal(500).astype(np.float32),
                             0.4 + 0.2 * (step % 3))
        before = mu
        token, mu = mirostat(logits, mu, tau, 0.1, rng)
        surprises.append(tau + (before - mu) / 0.1)
        possible = -np.log2(softmax(logits))
        assert possible[token] <= before + 1e-4 or token == logits.argmax()
    assert np.mean(surprises[300:]) == pytest.approx(tau, abs=0.25)
