"""A stable sort by torch."""

import torch

from gearworks.beam import Hypothesis


def best_continuations(running, logprobs, count):
    before = torch.tensor([hypothesis.score for hypothesis in running], dtype=torch.float32)
    scores = before[:, None] + torch.from_numpy(logprobs)
    values, places = torch.sort(scores.flatten(), descending=True, stable=True)
    result = []
    for value, place in zip(values[:count].tolist(), places[:count].tolist()):
        beam, token = divmod(place, scores.shape[1])
        result.append((beam, Hypothesis((*running[beam].ids, token), value)))
    return result
