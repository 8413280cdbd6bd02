"""With torch for the arithmetic, recursively."""

import torch


def accept(proposed, draft, target, rng):
    rows = torch.from_numpy(target).double()

    def drawn(weights):
        ends = torch.cumsum(weights, 0)
        return int(torch.searchsorted(ends, rng.random() * float(ends[-1]), right=True))

    def rest_of(place):
        if place == len(proposed):
            return [drawn(rows[place])]
        guess = int(proposed[place])
        if draft is None:
            certain = torch.nn.functional.one_hot(torch.tensor(guess), rows.shape[1]).double()
        else:
            certain = torch.from_numpy(draft[place]).double()
        if rng.random() * float(certain[guess]) < float(rows[place, guess]):
            return [guess, *rest_of(place + 1)]
        return [drawn(torch.relu(rows[place] - certain))]

    return rest_of(0)
