"""Two methods that are called contrastive, and have little else in common.

Contrastive *decoding* lets a weak model say what is merely obvious, and subtracts it.
Contrastive *search* looks a step ahead, and prefers a token whose hidden state is not like
those before it.

Shapes: V vocabulary, k candidates, S earlier tokens, D hidden size. All float32.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gearworks.beam import branch
from gearworks.decoding import Context
from gearworks.errors import ModelError
from gearworks.families.gemma import capped
from gearworks.kv_cache import RaggedBatch
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.sampling import log_softmax, refuse_unusable


def contrastive_decoding(expert: np.ndarray, amateur: np.ndarray,
                         alpha: float = 0.1) -> np.ndarray:
    """New logits: how much likelier the expert finds each token than the amateur does.

    expert, amateur: (V,) logits; alpha: tokens less than alpha times as likely as the expert's
    likeliest are ruled out, or the amateur's surprise would decide. Returns (V,).
    Source: Li et al. 2022, "Contrastive Decoding: Open-ended Text Generation as Optimization".

    >>> expert, amateur = np.log(np.array([[0.5, 0.4, 0.1], [0.8, 0.1, 0.1]], np.float32))
    >>> contrastive_decoding(expert, amateur, 0.5).round(2)
    array([-0.47,  1.39,  -inf], dtype=float32)
    """
    expert, amateur = log_softmax(expert), log_softmax(amateur)
    return np.where(expert < expert.max() + np.log(np.float32(alpha)), np.float32(-np.inf),
                    expert - amateur)


def contrastive_scores(probabilities: np.ndarray, candidates: np.ndarray, past: np.ndarray,
                       alpha: float) -> np.ndarray:
    """The score of each candidate: its probability, less its likeness to what came before.

    probabilities: (k,); candidates: (k, D), the hidden states that the candidates would have;
    past: (S, D), those of all earlier tokens; alpha: the weight of the likeness, from 0 to 1,
    which is the largest cosine. Returns (k,).
    Source: Su et al. 2022, "A Contrastive Framework for Neural Text Generation".

    >>> contrastive_scores(np.array([0.75, 0.25], np.float32),
    ...                    np.array([[1., 0.], [0., 2.]], np.float32),
    ...                    np.array([[3., 0.]], np.float32), 0.5)
    array([-0.125,  0.125], dtype=float32)
    """
    def directions(vectors: np.ndarray) -> np.ndarray:
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    likeness = (directions(candidates) @ directions(past).T).max(axis=-1)
    return (1 - alpha) * probabilities - alpha * likeness


def contrastive_search(model: Model, prompt_ids: Sequence[int], max_tokens: int, k: int = 4,
                       alpha: float = 0.6, eos_ids: Collection[int] = ()) -> list[int]:
    """Continue a prompt by contrastive search.
    k: candidates at each step; alpha as for `contrastive_scores`.

    max_tokens: so many, or as many as the model's context has room for. eos_ids: any of them
    ends the text, and is not part of it. Each step runs the
    model over all candidates. alpha 0 is greedy. Raises ModelError for an empty prompt, no
    candidates, and logits without a distribution.
    """
    if not len(prompt_ids) or k < 1:
        raise ModelError("cannot search",
                         f"there are {k} candidates, and {len(prompt_ids)} tokens in the "
                         "prompt",
                         "give at least one of each")
    hidden_model = _hidden_model(model)
    max_tokens = min(max_tokens, model.config.max_position_embeddings - len(prompt_ids))
    context, ids = Context(hidden_model, len(prompt_ids) + max(max_tokens, 0)), []
    past = context.forward_all(prompt_ids, rows=len(prompt_ids))                        # (S, D)
    cache = context.cache
    for _ in range(max_tokens):
        logits = capped(past[-1] @ model.weights.lm_head.T, model.config.logit_softcap)
        refuse_unusable(logits)
        candidates = np.argsort(-logits, kind="stable")[:k]
        branches = [branch(cache, model) for _ in candidates]
        positions = np.full(len(candidates), len(prompt_ids) + len(ids))
        batch = RaggedBatch(branches, [1] * len(branches))
        hidden = hidden_model.forward(candidates, positions, batch)                     # (k, D)
        scores = contrastive_scores(softmax(logits)[candidates], hidden, past, alpha)
        best = int(scores.argmax())
        if candidates[best] in eos_ids:
            break
        ids.append(int(candidates[best]))
        cache, past = branches[best], np.concatenate([past, hidden[[best]]])
    return ids


def _hidden_model(model: Model) -> Model:
    """With a head that changes nothing: "logits" are the normed hidden states, (T, D)."""
    identity = np.eye(model.config.hidden_size, dtype=np.float32)
    return Model(replace(model.config, logit_softcap=None),
                 replace(model.weights, lm_head=identity))
