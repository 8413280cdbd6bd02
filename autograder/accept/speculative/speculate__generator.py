"""A generator of steps, and a loop over their tokens."""

import numpy as np

from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams
from gearworks.speculative import Tally, next_tokens


def speculate(context, ids, proposer, *, params=SamplingParams(), count=4, max_tokens=256,
              eos_ids=(), on_token=None, tally=None):
    tally = Tally() if tally is None else tally
    left = context.cache.capacity - len(ids)
    if len(ids) == 0 or left < 0 or max_tokens < 0 or (left == 0 and max_tokens):
        raise ModelError("nothing to do", "no prompt, or no room",
                         "change the prompt or the cache")
    max_tokens = min(max_tokens, left)
    generated = []

    def steps():
        rng, text = np.random.default_rng(params.seed), list(ids)
        while True:
            space = min(count, max_tokens - (len(text) - len(ids)) - 1)
            proposal = proposer.propose(text, space, rng) if space > 0 else None
            guesses = proposal.ids[:space] if proposal else []
            behind = text[len(context.ids):]
            logits = context.forward_all(behind + guesses, rows=1 + len(guesses))
            accepted = next_tokens(logits, guesses,
                                   proposal.probabilities if proposal else None, params, text,
                                   len(ids), rng)
            tally.steps += 1
            tally.proposed += len(guesses)
            tally.accepted += len(accepted) - 1
            text += accepted
            context.truncate(len(text) - 1)
            yield accepted

    if max_tokens == 0:
        return [], "length"
    context.rewind(ids)
    for step in steps():
        for token in step:
            if token in set(eos_ids):
                context.truncate(len(ids) + len(generated))
                return generated, "stop"
            generated.append(token)
            tally.generated += 1
            if on_token is not None and on_token(token):
                context.truncate(len(ids) + len(generated) - 1)
                return generated, "stop"
        if len(generated) == max_tokens:
            return generated, "length"
