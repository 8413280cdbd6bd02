"""With the generator's own `choice`, in float64."""

import numpy as np


def accept(proposed, draft, target, rng):
    p = np.asarray(target, np.float64)
    for i, x in enumerate(proposed):
        q = np.zeros(p.shape[1]) if draft is None else np.asarray(draft[i], np.float64)
        if draft is None:
            q[x] = 1
        if rng.uniform() >= min(1.0, p[i, x] / q[x]):
            residual = np.clip(p[i] - q, 0, None)
            return (list(proposed[:i])
                    + [int(rng.choice(len(residual), p=residual / residual.sum()))])
    last = p[len(proposed)]
    return list(proposed) + [int(rng.choice(len(last), p=last / last.sum()))]
