"""Gather and scatter, as Hugging Face writes it."""

import torch


def repetition_penalty(logits, penalty, ids):
    x, places = torch.from_numpy(logits), torch.tensor(list(ids), dtype=torch.long)
    score = x.gather(0, places)
    return x.scatter(0, places, torch.where(score < 0, score * penalty, score / penalty)).numpy()
