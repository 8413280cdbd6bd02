"""One einsum for all products."""

import numpy as np


def contrastive_scores(probabilities, candidates, past, alpha):
    products = np.einsum("kd,sd->ks", candidates, past, dtype=np.float64)
    lengths = np.sqrt(np.einsum("kd,kd->k", candidates, candidates, dtype=np.float64))[:, None]
    others = np.sqrt(np.einsum("sd,sd->s", past, past, dtype=np.float64))
    return (probabilities * (1 - alpha)
            - alpha * np.max(products / lengths / others, axis=1)).astype(np.float32)
