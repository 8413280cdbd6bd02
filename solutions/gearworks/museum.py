"""Pieces of engines that were found broken in public, repaired; the chapters show them as they were found.

Left out on purpose: the damage, which is written down once, beside the other wrong versions that the checks must catch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gearworks.chat import render_chat
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
    Raises ModelError(what, why, hint), an error of three texts, for a character that is not in the alphabet, since text
    is never dropped in silence.

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


def prompt_ids(request: Mapping[str, Any], template: str, bos_token: str,
               encode: Callable[..., list[int]]) -> list[int]:
    """The ids that a model reads for a request: {"messages": [...]}, a conversation, or {"prompt": "..."}, a text.

    template: the model's chat template, for `render_chat`; bos_token: the text of its BOS. encode: the model's own
    `Tokenizer.encode`, called as encode(text, add_special_tokens=...), which knows whether the model wants BOS.
    A conversation is the model's as its template writes it, special tokens included, no more and no fewer, and it ends
    with the words that open the assistant's answer. A text to continue is given to the model as its tokenizer wants it.

    >>> template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    >>> def encode(text, parse_special=True, add_special_tokens=False):
    ...     return [*b"^" * add_special_tokens, *text.encode("utf-8")]
    >>> bytes(prompt_ids({"messages": [{"role": "user", "content": "Hi"}]}, template, "^", encode))
    b'^<user>Hi'
    >>> bytes(prompt_ids({"prompt": "Hi"}, template, "^", encode))
    b'^Hi'
    """
    if "messages" in request:
        text = render_chat(request["messages"], template, bos_token=bos_token)
        return encode(text, add_special_tokens=False)
    return encode(request["prompt"], add_special_tokens=True)


def prompt_ids_test(prompt_ids: Callable[[Mapping[str, Any], str, str, Callable[..., list[int]]], list[int]]) -> None:
    """A test: raises AssertionError, or whatever the tested function raises, unless `prompt_ids` is right.

    It passes on every function that does what the docstring of `prompt_ids` says, whichever way, and fails on those
    that have been found in servers: BOS twice, BOS never, an answer that is not opened.

    >>> prompt_ids_test(prompt_ids)
    """
    template = ("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}")

    def encode(text: str, parse_special: bool = True, add_special_tokens: bool = False) -> list[int]:
        return [*b"^" * add_special_tokens, *text.encode("utf-8")]       # one byte, one token; "^" is BOS

    def encode_without_bos(text: str, parse_special: bool = True, add_special_tokens: bool = False) -> list[int]:
        return [*text.encode("utf-8")]

    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    assert prompt_ids(chat, template, "^", encode) == [*b"^<user>Hi<assistant>"]
    assert prompt_ids(chat, template, "^", encode_without_bos) == [*b"^<user>Hi<assistant>"]
    assert prompt_ids({"prompt": "Hi"}, template, "^", encode) == [*b"^Hi"]
    assert prompt_ids({"prompt": "Hi"}, template, "^", encode_without_bos) == [*b"Hi"]
