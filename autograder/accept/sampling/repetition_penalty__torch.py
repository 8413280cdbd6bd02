"""Gather and scatter, as Hugging Face writes it."""

import torch


def repetition_penalty(logits, penalty, ids):
    if logits.ndim == 2:
        rows = [repetition_penalty(row, penalty, ids[number])
                for number, row in enumerate(logits)]
        return torch.stack([torch.from_numpy(row) for row in rows]).numpy()
    x, places = torch.from_numpy(logits), torch.tensor(list(ids), dtype=torch.long)
    score = x.gather(0, places)
    return x.scatter(0, places,
                     torch.where(score < 0, score * penalty, score / penalty)).numpy()
