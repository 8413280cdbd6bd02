"""Code points compared in NumPy."""

import numpy as np

from gearworks.errors import ModelError


def conversation_ids(past, message, characters):
    if message == "/reset":
        return {"input_ids": [], "positions": []}
    known = np.array([ord(character) for character in characters])
    wanted = np.array([ord(character) for character in message], dtype=int)
    match = wanted[:, None] == known[None, :]
    if not match.any(axis=1).all():
        raise ModelError("a character is unknown", "it is not in the alphabet", "leave it out")
    ids = np.concatenate([np.array(past if len(past) else [1], dtype=int),
                          match.argmax(axis=1) + 3])
    return {"input_ids": ids.tolist(), "positions": np.arange(len(ids)).tolist()}
