"""With a Counter."""

from collections import Counter


def presence_frequency(logits, presence, frequency, generated):
    result = logits.copy()
    for row, ids in zip(result, generated) if logits.ndim == 2 else [(result, generated)]:
        for id, times in Counter(ids).items():
            row[id] -= presence + times * frequency
    return result
