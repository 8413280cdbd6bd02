"""A table that holds the special tokens too,
and a KeyError turned into the error that is wanted."""

from gearworks.errors import ModelError
from gearworks.museum import BOS, EOS, PAD


def conversation_ids(past, message, characters):
    if message == "/reset":
        return dict(input_ids=[], positions=[])
    table = {name: id for id, name in enumerate([PAD, BOS, EOS, *characters])}
    try:
        new = [table[character] for character in message]
    except KeyError as error:
        raise ModelError("cannot encode", f"{error} is not in the alphabet",
                         "use its characters only") from None
    ids = [*past, *new] if len(past) else [BOS, *new]
    return dict(positions=list(range(len(ids))), input_ids=ids)
