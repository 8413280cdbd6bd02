"""With torch's cosine similarity."""

import torch


def contrastive_scores(probabilities, candidates, past, alpha):
    k, s = torch.from_numpy(candidates).double(), torch.from_numpy(past).double()
    cosine = torch.nn.functional.cosine_similarity(k[:, None], s[None], dim=-1)
    return (torch.from_numpy(probabilities) * (1 - alpha)
            - alpha * cosine.amax(dim=1)).float().numpy()
