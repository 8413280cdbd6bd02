"""np.subtract.at subtracts at repeated places, too."""

import numpy as np


def presence_frequency(logits, presence, frequency, generated):
    if logits.ndim == 2:
        return np.stack([presence_frequency(row, presence, frequency, ids)
                         for row, ids in zip(logits, generated)])
    out, ids = np.copy(logits), np.asarray(list(generated), dtype=np.intp)
    np.subtract.at(out, ids, np.float32(frequency))
    np.subtract.at(out, np.array(sorted(set(ids.tolist())), dtype=np.intp),
                   np.float32(presence))
    return out
