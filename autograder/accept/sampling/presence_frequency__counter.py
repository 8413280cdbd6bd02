"""With a Counter."""

from collections import Counter


def presence_frequency(logits, presence, frequency, generated):
    result = logits.copy()
    for id, times in Counter(generated).items():
        result[id] -= presence + times * frequency
    return result
