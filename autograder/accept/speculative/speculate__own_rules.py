"""Without `next_tokens`: each place chosen by itself, greedy or by `accept`."""

import numpy as np

from gearworks.layers import softmax
from gearworks.sampling import SamplingParams, choose, process
from gearworks.speculative import Tally, accept


def speculate(context, ids, proposer, *, params=SamplingParams(), count=4, max_tokens=256, eos_ids=(), on_token=None,
              tally=None):
    tally = tally if tally is not None else Tally()
    rng = np.random.default_rng(params.seed)
    prompt, generated = list(ids), []
    context.rewind(prompt)
    while len(generated) < max_tokens:
        text = prompt + generated
        limit = min(count, max_tokens - len(generated) - 1, context.cache.capacity - len(text))
        guesses, draft = [], None
        if limit > 0:
            proposal = proposer.propose(list(text), limit, rng)
            guesses, draft = [int(id) for id in proposal.ids][:limit], proposal.probabilities
        rows = context.forward_all(text[len(context.ids):] + guesses, rows=len(guesses) + 1)
        if params.temperature > 0:
            target = [softmax(process(row, params, text + guesses[:i], generated + guesses[:i])) for i,
                      row in enumerate(rows)]
            new = accept(guesses, draft, np.stack(target), rng)
        else:
            new = []
            for i in range(len(guesses) + 1):
                new.append(choose(rows[i], params, text + new, rng, generated + new))
                if i == len(guesses) or new[i] != guesses[i]:
                    break
        context.truncate(len(text) + len(new) - 1)
        tally.steps += 1
        tally.proposed += len(guesses)
        tally.accepted += len(new) - 1
        for token in new:
            if any(token == end for end in eos_ids):
                return generated, "stop"
            generated.append(token)
            tally.generated += 1
            if on_token is not None and on_token(token) is True:
                return generated, "stop"
    return generated, "length"
