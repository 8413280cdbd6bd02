"""Rewinds the cache before each step, with `rewind`, and tidies up at the end."""

import numpy as np

from gearworks.decoding import room_for
from gearworks.sampling import SamplingParams
from gearworks.speculative import Tally, next_tokens


def speculate(context, ids, proposer, *, params=SamplingParams(), count=4, max_tokens=256,
              eos_ids=(), on_token=None, tally=None):
    rng, tally, out = np.random.default_rng(params.seed), tally or Tally(), []
    reason = "length"
    max_tokens = room_for(ids, max_tokens, context.cache.capacity)
    context.rewind(ids)
    while len(out) < max_tokens and reason == "length":
        text = [*ids, *out]
        known = context.rewind(text)
        room = max(0, min(count, max_tokens - len(out) - 1))
        guesses, probabilities = [], None
        if room:
            proposal = proposer.propose(text, room, rng)
            guesses, probabilities = list(proposal.ids[:room]), proposal.probabilities
        logits = context.forward_all(text[known:] + guesses, len(guesses) + 1)
        new = next_tokens(logits, guesses, probabilities, params, text, len(ids), rng)
        tally.steps += 1
        tally.proposed += len(guesses)
        tally.accepted += len(new) - 1
        for token in new:
            if token in eos_ids:
                context.truncate(len(ids) + len(out))
                return out, "stop"
            out.append(token)
            tally.generated += 1
            if on_token and on_token(token):
                reason = "stop"
                break
    context.truncate(min(len(context.ids), len(ids) + max(len(out) - 1, 0)))
    return out, reason
