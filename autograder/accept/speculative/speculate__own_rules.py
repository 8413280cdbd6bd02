"""Without `next_tokens`: each place chosen by itself, greedy or by `accept`."""

import numpy as np

from gearworks.decoding import room_for
from gearworks.layers import softmax
from gearworks.sampling import SamplingParams, choose, process
from gearworks.speculative import Tally, accept


def speculate(context, ids, proposer, *, params=SamplingParams(), count=4, max_tokens=256,
              eos_ids=(), on_token=None, tally=None):
    tally = tally if tally is not None else Tally()
    rng = np.random.default_rng(params.seed)
    prompt, generated, ended = list(ids), [], False
    most = room_for(prompt, max_tokens, context.cache.capacity)
    context.rewind(prompt)
    while not ended and len(generated) < most:
        text = prompt + generated
        limit = min(count, most - len(generated) - 1)
        guesses, draft = [], None
        if limit > 0:
            proposal = proposer.propose(list(text), limit, rng)
            guesses, draft = [int(id) for id in proposal.ids][:limit], proposal.probabilities
        rows = context.forward_all(text[len(context.ids):] + guesses, rows=len(guesses) + 1)
        if params.temperature > 0:
            target = [softmax(process(row, params, text + guesses[:i], generated + guesses[:i]))
                      for i, row in enumerate(rows)]
            new = accept(guesses, draft, np.stack(target), rng)
        else:
            new = []
            for i in range(len(guesses) + 1):
                new.append(choose(rows[i], params, text + new, rng, generated + new))
                if i == len(guesses) or new[i] != guesses[i]:
                    break
        tally.steps += 1
        tally.proposed += len(guesses)
        tally.accepted += len(new) - 1
        said = new[:next((place for place, token in enumerate(new) if token in eos_ids),
                         len(new))]
        kept = len(said) - (len(said) == len(new))        # a step's last token has not been run
        ended = len(said) < len(new)
        for place, token in enumerate(said):
            generated.append(token)
            tally.generated += 1
            if on_token is not None and on_token(token) is True:
                kept, ended = place, True
                break
        context.truncate(len(text) + kept)
    return generated, "stop" if ended else "length"
