"""Beam search: several beginnings of a text side by side, and the likeliest whole one.

Shapes: B beams, V vocabulary.
Source: as Hugging Face's `generate(num_beams=B, do_sample=False)` searches,
`early_stopping=False` included.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.decoding import room_for
from gearworks.errors import ModelError
from gearworks.kv_cache import KVCache, RaggedBatch
from gearworks.model import Model
from gearworks.sampling import log_softmax, refuse_unusable


@dataclass(frozen=True)
class Hypothesis:
    """A text that may still go on, or a finished one.

    score: the sum of its log-probabilities, of a finished one over a power of its length.
    """

    ids: tuple[int, ...]
    score: float


def beam_search(model: Model, prompt_ids: Sequence[int], num_beams: int, max_tokens: int,
                eos_ids: Collection[int] = (), length_penalty: float = 1.0) -> list[Hypothesis]:
    """The likeliest continuations found, best first, each with the EOS that ends it, if any.

    max_tokens: at most so many, and never more than the model's context has room for.
    length_penalty: the power of the length by which a finished text's score is divided; above 0
    favours long ones.
    Raises ModelError for fewer than one beam, an empty prompt or one that leaves no room, a
    limit of no tokens, and logits without a distribution.
    """
    if num_beams < 1 or max_tokens < 1:
        raise ModelError("cannot search",
                         f"there are {num_beams} beams, and {max_tokens} tokens to come",
                         "give at least one of each")
    max_tokens = room_for(prompt_ids, max_tokens, model.config.max_position_embeddings)
    cache = model.new_cache(len(prompt_ids) + max_tokens)
    logits = model.forward(np.asarray(prompt_ids), np.arange(len(prompt_ids)), cache,
                           logits_at=[-1])
    running, caches, finished = [Hypothesis((), 0.0)], [cache], []
    for length in range(1, max_tokens + 1):
        refuse_unusable(logits)
        # As many candidates as could end at once, and as many again as are needed to go on
        candidates = best_continuations(running, log_softmax(logits),
                                        max(2, 1 + len(eos_ids)) * num_beams)
        ended = [hypothesis.ids[-1] in eos_ids or length == max_tokens
                 for _, hypothesis in candidates]
        finished += [Hypothesis(hypothesis.ids, hypothesis.score / length ** length_penalty)
                     for (_, hypothesis), has_ended in zip(candidates[:num_beams], ended)
                     if has_ended]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:num_beams]
        going_on = [candidate for candidate, has_ended in zip(candidates, ended)
                    if not has_ended][:num_beams]
        if not going_on:
            break
        running = [hypothesis for _, hypothesis in going_on]
        if (len(finished) == num_beams
            and running[0].score / length ** length_penalty <= finished[-1].score):
            break                        # none that is running can become better, it is assumed
        caches = [branch(caches[beam], model) for beam, _ in going_on]
        positions = np.full(len(running), len(prompt_ids) + length - 1)
        logits = model.forward(np.array([hypothesis.ids[-1] for hypothesis in running]),
                               positions, RaggedBatch(caches, [1] * len(caches)))  # (B, V)
    return finished


def best_continuations(running: Sequence[Hypothesis], logprobs: np.ndarray,
                       count: int) -> list[tuple[int, Hypothesis]]:
    """The best texts of one token more, best first, each with the number of its old beam.

    logprobs: (B, V), of each beam's next token. Of equal scores the lower beam and the lower id
    come first.

    >>> beams = [Hypothesis((7,), -1.0), Hypothesis((8,), -0.5)]
    >>> best_continuations(beams, np.array([[-1., -3.], [-2., -4.]]), 2)
    [(0, Hypothesis(ids=(7, 0), score=-2.0)), (1, Hypothesis(ids=(8, 0), score=-2.5))]
    """
    scores = logprobs + np.array([[hypothesis.score] for hypothesis in running], np.float32)
    count = min(count, scores.size)
    candidates = np.flatnonzero(scores.ravel() >= np.partition(scores.ravel(), -count)[-count])
    order = candidates[np.argsort(-scores.ravel()[candidates], kind="stable")][:count]
    return [(int(beam),
             Hypothesis((*running[beam].ids, int(token)), float(scores[beam, token])))
            for beam, token in zip(*np.divmod(order, logprobs.shape[1]))]


def branch(cache: KVCache, model: Model) -> KVCache:
    """A copy of a cache, for a beam that goes another way from here."""
    copy = model.new_cache(cache.capacity)
    length = len(cache)
    copy.keys[:, :, :length] = cache.keys[:, :, :length]
    copy.values[:, :, :length] = cache.values[:, :, :length]
    copy.lengths = list(cache.lengths)
    return copy
