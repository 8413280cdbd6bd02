"""The seven steps of a request, over four black boxes.

Text becomes ids (1), the model turns ids into logits (2 to 4: embedding, layers, head), a token
is chosen (5), the loop appends it or stops (6), and ids become text (7). Everything else in an
engine makes one of these faster or better.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Completion:
    """What a request gives back.

    finish_reason: "stop" when the model (or the reader) ended it, "length" when the limit did.
    ids: the generated tokens, without the one that ended it.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str


def run_request(prompt: str, *, encode: Callable[[str], list[int]],
                forward: Callable[[Sequence[int]], Any], choose: Callable[[Any], int],
                decode: Callable[[list[int]], str], eos_ids: Collection[int], max_tokens: int,
                on_token: Callable[[int], bool] | None = None) -> Completion:
    """Answer one prompt: encode, then forward and choose until it is time to stop, then decode.

    encode: text to ids. forward: takes a list of the ids that the model has not seen yet (the
    whole prompt first, then one token at a time) and returns the logits after the last. choose:
    logits to the next id. decode: generated ids to text.
    The request stops at any of `eos_ids`, the very first token included, and after `max_tokens`
    tokens (0 is allowed); the model is never asked for a token that nobody wants. on_token:
    called with each generated id; when it returns true, the request stops there, and that id
    stays.
    Returns Completion(prompt_ids, ids, text, finish_reason): ids are the generated ones,
    without an EOS; finish_reason is "stop" after an EOS or at the wish of `on_token`, "length"
    at the limit.

    >>> count = run_request("1 2", encode=lambda text: [int(word) for word in text.split()],
    ...                     forward=lambda ids: ids[-1], choose=lambda last: last + 1,
    ...                     decode=lambda ids: " ".join(map(str, ids)), eos_ids={6},
    ...                     max_tokens=10)
    >>> count.text, count.finish_reason
    ('3 4 5', 'stop')
    """
    prompt_ids = encode(prompt)
    ids: list[int] = []
    finish_reason = "length"
    unseen = prompt_ids
    while len(ids) < max_tokens:
        token = choose(forward(unseen))
        if token in eos_ids:
            finish_reason = "stop"
            break
        ids.append(token)
        if on_token is not None and on_token(token):
            finish_reason = "stop"
            break
        unseen = [token]
    return Completion(prompt_ids, ids, decode(ids), finish_reason)
