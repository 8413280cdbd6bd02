"""One token of a set after the other."""


def repetition_penalty(logits, penalty, ids):
    result = logits.copy()
    for id in set(ids):
        if result[id] > 0:
            result[id] /= penalty
        else:
            result[id] *= penalty
    return result
