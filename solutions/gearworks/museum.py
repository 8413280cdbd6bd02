"""Pieces of engines that were found broken in public, repaired; the chapters show them as they were found.

Left out on purpose: the damage, which is written down once, beside the other wrong versions that the checks must catch.
"""

from collections.abc import Callable, Sequence

from gearworks.errors import ModelError

# The special tokens of a tutorial's character-level model.
PAD, BOS, EOS = 0, 1, 2


def conversation_ids(past: Sequence[int], message: str, characters: str) -> dict[str, list[int]]:
    """What a character-level model reads after the user's next message: {"input_ids": [...], "positions": [...]}.

    past: the ids of the conversation so far, empty at its beginning; left as it is. characters: the alphabet, each
    character once. Ids 0, 1 and 2 are PAD, BOS and EOS and no character's; the first character's id is 3, and so on.
    input_ids: the whole conversation, message included. It begins with BOS, once. EOS is the model's word for "I have
    finished"; the engine never says it on the user's behalf. positions: each id's place in the conversation, from 0.
    The message "/reset" forgets everything: both lists are empty.
    Raises ModelError for a character that is not in the alphabet, since text is never dropped in silence.

    >>> conversation_ids([], "ba", "abc")
    {'input_ids': [1, 4, 3], 'positions': [0, 1, 2]}
    """
    if message == "/reset":
        return {"input_ids": [], "positions": []}
    id_of = {character: id for id, character in enumerate(characters, start=3)}
    unknown = [character for character in message if character not in id_of]
    if unknown:
        raise ModelError("cannot read this message", f"the model has no id for {unknown[0]!r}",
                         "leave it out, or use a model whose alphabet has it")
    ids = list(past) or [BOS]
    ids = ids + [id_of[character] for character in message]
    return {"input_ids": ids, "positions": list(range(len(ids)))}


def conversation_ids_test(conversation_ids: Callable[[Sequence[int], str, str], dict[str, list[int]]]) -> None:
    """A test: raises AssertionError, or whatever the tested function raises, unless `conversation_ids` is right.

    It passes on every function that does what the docstring of `conversation_ids` says, and on no other that anybody
    has yet written into a tutorial.

    >>> conversation_ids_test(conversation_ids)
    """
    begun = conversation_ids([], "ba", "abc")
    assert begun == {"input_ids": [1, 4, 3], "positions": [0, 1, 2]}
    assert conversation_ids([1, 4, 3], "c", "abc") == {"input_ids": [1, 4, 3, 5], "positions": [0, 1, 2, 3]}
    assert conversation_ids([1, 4, 3], "/reset", "abc") == {"input_ids": [], "positions": []}
    try:
        conversation_ids([], "é", "abc")
    except ModelError:
        return
    raise AssertionError("a character that the model does not know was dropped")
