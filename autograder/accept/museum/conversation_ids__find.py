"""Ids by searching the alphabet."""

from gearworks.errors import ModelError
from gearworks.museum import BOS


def conversation_ids(past, message, characters):
    if message == "/reset":
        ids = []
    else:
        ids = list(past)
        if not ids:
            ids.append(BOS)
        for character in message:
            place = characters.find(character)
            if place < 0:
                raise ModelError("unknown character", repr(character), "leave it out")
            ids.append(place + 3)
    return {"input_ids": ids, "positions": [place for place, _ in enumerate(ids)]}
