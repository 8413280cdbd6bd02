"""Pieces of engines that were found broken in public, repaired; chapters show them as found.

Left out on purpose: the damage, which is written down once, beside the other wrong versions
that the checks must catch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from gearworks.chat import render_chat
from gearworks.errors import ModelError

# The special tokens of a tutorial's character-level model.
PAD, BOS, EOS = 0, 1, 2


def conversation_ids(past: Sequence[int], message: str,
                     characters: str) -> dict[str, list[int]]:
    """What a character-level model reads after the user's next message.

    past: the ids of the conversation so far, empty at its beginning; left as it is. characters:
    the alphabet, each character once. Ids 0, 1 and 2 are PAD, BOS and EOS and no character's;
    the first character's id is 3, and so on.
    Returns {"input_ids": [...], "positions": [...]}. input_ids: the whole conversation, message
    included. It begins with BOS, once. EOS is the model's word for "I have finished"; the
    engine never says it on the user's behalf. positions: each id's place in the conversation,
    from 0. The message "/reset" forgets everything: both lists are empty.
    Raises ModelError(what, why, hint), an error of three texts, for a character that is not in
    the alphabet, since text is never dropped in silence.

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


def conversation_ids_test(conversation_ids: Callable[[Sequence[int], str, str],
                                                     dict[str, list[int]]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `conversation_ids` says, and on
    no other that anybody has yet written into a tutorial.

    >>> conversation_ids_test(conversation_ids)
    >>> conversation_ids_test(lambda past, message, characters: {"input_ids": [0],
    ...                                                          "positions": [0]})
    Traceback (most recent call last):
    AssertionError
    """
    begun = conversation_ids([], "ba", "abc")
    assert begun == {"input_ids": [1, 4, 3], "positions": [0, 1, 2]}
    grown = conversation_ids([1, 4, 3], "c", "abc")
    assert grown == {"input_ids": [1, 4, 3, 5], "positions": [0, 1, 2, 3]}
    assert conversation_ids([1, 4, 3], "/reset", "abc") == {"input_ids": [], "positions": []}
    try:
        conversation_ids([], "é", "abc")
    except ModelError:
        return
    raise AssertionError("a character that the model does not know was dropped")


def prompt_ids(request: Mapping[str, Any], template: str, bos_token: str,
               encode: Callable[..., list[int]]) -> list[int]:
    """The ids that a model reads for a request.

    request: {"messages": [...]}, a conversation, or {"prompt": "..."}, a text.
    template: the model's chat template, for `render_chat`; bos_token: the text of its BOS.
    encode: the model's own `Tokenizer.encode`, called as encode(text, add_special_tokens=...),
    which knows whether the model wants BOS. A conversation is the model's as its template
    writes it, special tokens included, no more and no fewer, and it ends with the words that
    open the assistant's answer. A text to continue is given to the model as its tokenizer wants
    it.

    >>> template = ("{{ bos_token }}{% for m in messages %}"
    ...             "<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> def encode(text, parse_special=True, add_special_tokens=False):
    ...     return [*b"^" * add_special_tokens, *text.encode("utf-8")]
    >>> chat = {"messages": [{"role": "user", "content": "Hi"}]}
    >>> bytes(prompt_ids(chat, template, "^", encode))
    b'^<user>Hi'
    >>> bytes(prompt_ids({"prompt": "Hi"}, template, "^", encode))
    b'^Hi'
    """
    if "messages" in request:
        text = render_chat(request["messages"], template, bos_token=bos_token)
        return encode(text, add_special_tokens=False)
    return encode(request["prompt"], add_special_tokens=True)


def prompt_ids_test(prompt_ids: Callable[[Mapping[str, Any], str, str,
                                          Callable[..., list[int]]], list[int]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `prompt_ids` says, whichever
    way, and fails on those that have been found in servers: BOS twice, BOS never, an answer
    that is not opened.

    >>> prompt_ids_test(prompt_ids)
    >>> prompt_ids_test(lambda request, template, bos_token, encode: [])
    Traceback (most recent call last):
    AssertionError
    """
    template = ("{{ bos_token }}"
                "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}")

    def encode(text: str, parse_special: bool = True,
               add_special_tokens: bool = False) -> list[int]:
        # one byte, one token; "^" is BOS
        return [*b"^" * add_special_tokens, *text.encode("utf-8")]

    def encode_without_bos(text: str, parse_special: bool = True,
                           add_special_tokens: bool = False) -> list[int]:
        return [*text.encode("utf-8")]

    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    assert prompt_ids(chat, template, "^", encode) == [*b"^<user>Hi<assistant>"]
    assert prompt_ids(chat, template, "^", encode_without_bos) == [*b"^<user>Hi<assistant>"]
    assert prompt_ids({"prompt": "Hi"}, template, "^", encode) == [*b"^Hi"]
    assert prompt_ids({"prompt": "Hi"}, template, "^", encode_without_bos) == [*b"Hi"]


def split_heads(qkv: np.ndarray, num_heads: int,
                num_kv_heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut what a fused projection gives into heads: q (T, H, d), k (T, K, d), v (T, K, d).

    qkv: (T, (H + 2K) · d). Each token's row holds its H query heads, then its K key heads, then
    its K value heads, one after the other, and the d numbers of a head stand side by side.
    num_heads is H, num_kv_heads is K.

    >>> q, k, v = split_heads(np.arange(16).reshape(2, 8), num_heads=2, num_kv_heads=1)
    >>> q.tolist()
    [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    >>> k.tolist(), v.tolist()
    ([[[4, 5]], [[12, 13]]], [[[6, 7]], [[14, 15]]])
    """
    tokens, width = qkv.shape
    H, K = num_heads, num_kv_heads
    heads = qkv.reshape(tokens, H + 2 * K, width // (H + 2 * K))
    return heads[:, :H], heads[:, H:H + K], heads[:, H + K:]


def split_heads_test(split_heads: Callable[[np.ndarray, int, int],
                                           tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `split_heads` says, and fails on
    those that deal the numbers out otherwise: to other tokens, to other heads, to other places
    in a head, to the wrong one of q, k and v.

    >>> split_heads_test(split_heads)
    >>> split_heads_test(lambda qkv, num_heads, num_kv_heads: (qkv, qkv, qkv))
    Traceback (most recent call last):
    AssertionError
    """
    # Each number says where it belongs: token, head among all of them, place in the head.
    token, head, place = np.ogrid[:3, :7, :4]
    numbers = (100 * token + 10 * head + place).astype(np.float32)
    for tokens in (3, 1):
        q, k, v = split_heads(numbers[:tokens].reshape(tokens, 28).copy(), 3, 2)
        assert np.array_equal(q, numbers[:tokens, :3]), "queries"
        assert np.array_equal(k, numbers[:tokens, 3:5]), "keys"
        assert np.array_equal(v, numbers[:tokens, 5:]), "values"


def update_cache(keys: np.ndarray, values: np.ndarray, length: int, k: np.ndarray,
                 v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Store this step's keys and values in a layer's memory; returns what its queries may see.

    keys, values: (K, capacity, d), the memory, of which the first `length` tokens are filled;
    it is written in place, behind them, and nothing else of it is touched. k, v: (T, K, d), the
    new tokens; the caller knows that they fit.
    Returns the keys and the values of all length + T tokens, (K, length + T, d) each: a token
    looks at itself, too.

    >>> memory, other = np.zeros((1, 4, 2), int), np.zeros((1, 4, 2), int)
    >>> update_cache(memory, other, 0, np.array([[[1, 2]]]), np.array([[[5, 6]]]))[0].tolist()
    [[[1, 2]]]
    >>> update_cache(memory, other, 1, np.array([[[3, 4]]]), np.array([[[7, 8]]]))[1].tolist()
    [[[5, 6], [7, 8]]]
    """
    end = length + len(k)
    keys[:, length:end] = k.transpose(1, 0, 2)
    values[:, length:end] = v.transpose(1, 0, 2)
    return keys[:, :end], values[:, :end]


def update_cache_test(update_cache: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `update_cache` says, and fails
    on those that lose a token, show one too many, or store it in another place.

    >>> update_cache_test(update_cache)
    >>> update_cache_test(lambda keys, values, length, k, v: (keys, values))
    Traceback (most recent call last):
    AssertionError
    """
    numbers = np.arange(1, 61, dtype=np.float32).reshape(5, 2, 2, 3)    # (tokens, k or v, K, d)
    keys, values = np.zeros((2, 7, 3), np.float32), np.zeros((2, 7, 3), np.float32)
    length = 0
    for count in (3, 1, 1):                                          # a prompt, then two tokens
        k, v = numbers[length:length + count].swapaxes(0, 1)
        seen = update_cache(keys, values, length, k.copy(), v.copy())
        length += count
        for kind, memory in enumerate((keys, values)):
            stored = numbers[:length, kind].swapaxes(0, 1)                      # (K, length, d)
            after = f"after {length} tokens"
            assert np.array_equal(seen[kind], stored), f"what the step sees {after}"
            assert np.array_equal(memory[:, :length], stored), f"what is stored {after}"
            assert not memory[:, length:].any(), "memory that nothing belongs in yet"


# Parts that training tools put into the names of what they wrap: data parallelism, and
# torch.compile.
WRAPPERS = ("module", "_orig_mod")


def load_state(parameters: Mapping[str, np.ndarray],
               checkpoint: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A model's parameters after a checkpoint was loaded, by name, in the model's order.

    parameters: what the model was initialised with, random numbers by name. checkpoint: what a
    training run saved, arrays by name. A name is made of parts with dots between them. A tool
    that wraps a piece of a model puts a part of its own, one of `WRAPPERS`, into the names of
    all that is inside: "layers.0._orig_mod.attn.q". It may stand anywhere but at the end, and
    several times; the model's names have no such parts. Both arguments stay as they are.
    Raises ModelError(what, why, hint), an error of three texts, that names everything which
    does not fit: parameters that the checkpoint lacks, tensors that the model does not have,
    shapes that differ. Nothing keeps its random numbers.

    >>> load_state({"attn.q": np.zeros(2)}, {"module.attn._orig_mod.q": np.array([3., 4.])})
    {'attn.q': array([3., 4.])}
    """
    found = {".".join(part for part in name.split(".") if part not in WRAPPERS): array
             for name, array in checkpoint.items()}
    wrong = [name for name in parameters.keys() | found.keys()
             if name not in found or name not in parameters
             or found[name].shape != parameters[name].shape]
    if wrong:
        raise ModelError("the checkpoint does not fit the model",
                         "missing, unexpected or misshapen: " + ", ".join(sorted(wrong)),
                         "compare these names with those of the model")
    return {name: found[name] for name in parameters}


def load_state_test(load_state: Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
                                         dict[str, np.ndarray]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `load_state` says, and fails on
    those that let a parameter keep its random numbers, or overlook what does not fit.

    >>> load_state_test(load_state)
    >>> load_state_test(lambda parameters, checkpoint: dict(parameters))
    Traceback (most recent call last):
    AssertionError
    """
    random = {"embed": np.full(2, 9.), "layers.0.attn.q": np.full((2, 3), 9.),
              "layers.0.submodule": np.full(1, 9.)}
    saved = {"module.embed": np.array([1., 2.]),
             "module.layers.0._orig_mod.attn.q": np.arange(6.).reshape(2, 3),
             "module._orig_mod.layers.0.submodule": np.array([7.])}
    loaded = load_state(random, saved)
    assert list(loaded) == list(random)
    for mine, stored in zip(loaded.values(), saved.values()):
        assert np.array_equal(mine, stored)
    strange = {"module.layers.0._orig_mod.attn.bias": np.ones(2)}
    turned = {"module.layers.0._orig_mod.attn.q": np.ones((3, 2))}
    for damaged in (dict(list(saved.items())[:2]), saved | strange, saved | turned):
        try:
            load_state(random, damaged)
        except ModelError:
            continue
        raise AssertionError("a checkpoint that does not fit was loaded")


def stream_pieces(pieces: Sequence[str], stop: str) -> list[str]:
    """What a reader is shown of a text that arrives in pieces, and ends before a stop string.

    stop: not empty. Returns one string for each piece, what is shown when it has arrived, and
    one more, what is shown when the text is over. Nothing of the stop string is ever shown,
    nothing before it is lost, and nothing behind it counts. What can no longer be the beginning
    of the stop string is shown at once.

    >>> stream_pieces(["one E", "N", "GINE E", "ND two", " three"], "END")
    ['one ', '', 'ENGINE ', '', '', '']
    >>> stream_pieces(["the EN"], "END")
    ['the ', 'EN']
    """
    shown: list[str] = []
    waiting, ended = "", False
    for piece in pieces:
        if not ended:
            waiting += piece
            end = waiting.find(stop)
            ended = end >= 0
            if not ended:
                lengths = range(min(len(stop) - 1, len(waiting)), 0, -1)
                end = len(waiting) - next((length for length in lengths
                                           if stop.startswith(waiting[-length:])), 0)
            shown.append(waiting[:end])
            waiting = "" if ended else waiting[end:]
        else:
            shown.append("")
    return [*shown, waiting]


def stream_pieces_test(stream_pieces: Callable[[Sequence[str], str], list[str]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `stream_pieces` says, and fails
    on those that show a part of the stop string, lose a part of the text, or show it later than
    they could.

    >>> stream_pieces_test(stream_pieces)
    >>> stream_pieces_test(lambda pieces, stop: [*pieces, ""])
    Traceback (most recent call last):
    AssertionError
    """
    for stop, pieces, shown in (
        ("END", ["one E", "ND two", "three"], ["one ", "", "", ""]),    # over a border
        ("END", ["one END two", "END"], ["one ", "", ""]),              # inside a piece
        ("END", ["E", "N", "JOY"], ["", "", "ENJOY", ""]),              # a false alarm
        ("END", ["the E", "N"], ["the ", "", "EN"]),                    # over before the stop
        ("aab", ["xa", "aa", "b"], ["x", "a", "", ""]),                 # begins within itself
    ):
        assert stream_pieces(pieces, stop) == shown, (stop, pieces)


def prefix_hit(prompt_ids: Sequence[int], cached: Collection[tuple[int, ...]],
               block_size: int) -> dict[str, Any]:
    """What is taken from a prefix cache, and what the model computes, for a prompt.

    prompt_ids: at least one token. cached: what the blocks of the cache hold. A block holds
    block_size tokens, whose keys and values depend on all tokens before them; so its entry is
    the whole text from the beginning to the block's end. A text in it whose beginning is not in
    it, since that block was given up, is of no use.

    Returns {"cached_tokens": how many tokens at the beginning of the prompt come from the
    cache, "input_ids": the ids that the model computes, all others, "positions": where in the
    prompt these stand}. A cached block is used whole or not at all: nobody may write into it.
    As many blocks are used as can be; but the model's last row says how the text goes on, so
    that a prompt is never taken from the cache entirely.

    >>> cached = {(5, 6), (5, 6, 7, 8)}
    >>> prefix_hit([5, 6, 7, 8, 9], cached, block_size=2)
    {'cached_tokens': 4, 'input_ids': [9], 'positions': [4]}
    >>> prefix_hit([6, 5, 7], cached, block_size=2)
    {'cached_tokens': 0, 'input_ids': [6, 5, 7], 'positions': [0, 1, 2]}
    """
    ids = tuple(prompt_ids)
    known = 0
    while known + block_size < len(ids) and ids[:known + block_size] in cached:
        known += block_size
    return {"cached_tokens": known, "input_ids": list(ids[known:]),
            "positions": list(range(known, len(ids)))}


def prefix_hit_test(prefix_hit: Callable[[Sequence[int], Collection[tuple[int, ...]], int],
                                         dict[str, Any]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `prefix_hit` says, and fails on
    those that leave nothing to compute, use what they may not, or use less than they could.

    >>> prefix_hit_test(prefix_hit)
    >>> prefix_hit_test(lambda prompt_ids, cached, block_size: {})
    Traceback (most recent call last):
    AssertionError
    """
    cached = {(5, 6), (5, 6, 7, 8), (7, 8), (1, 2, 3, 4)}
    for ids, known in (
        ([5, 6, 7, 8], 2), ([5, 6], 0),                 # all of it is there
        ([5, 6, 7, 8, 9], 4), ([5, 6, 9], 2),           # the rest is shorter than a block
        ([5, 6, 7, 8, 9, 9], 4),
        ([5, 6, 9, 9, 7, 8, 9], 2),                     # behind a block that is not there
        ([1, 2, 3, 4, 9], 0),                           # its beginning was given up
        ([7, 8, 7, 8, 9], 2), ([9, 9, 5, 6, 7], 0), ([5], 0),
    ):
        assert prefix_hit(ids, cached, 2) == {
            "cached_tokens": known, "input_ids": ids[known:],
            "positions": list(range(known, len(ids)))}, ids


def upstream_request(request: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    """What a gateway sends on to the server of a model, for a chat request that came to it.

    request: the client's, as `json.loads` gives it: OpenAI's chat completions. models: the name
    of a model at the gateway -> its name at its server. The request goes on as it came, with
    what this gateway has never heard of, but for three things:

    - "model" becomes the name at the server;
    - "gateway", what the client tells the gateway alone, stays here;
    - a parameter that is null is left out, since some servers refuse it. That concerns the
      parameters alone: what is inside of one, as messages and schemas, is the client's own.

    The client's request is not changed. Raises ModelError(what, why, hint), an error of three
    texts, for a model that the gateway does not have.

    >>> upstream_request({"model": "small", "messages": [{"role": "user", "content": "Hi"}],
    ...                   "stop": None, "gateway": {"team": 7}}, {"small": "smollm2-135m"})
    {'model': 'smollm2-135m', 'messages': [{'role': 'user', 'content': 'Hi'}]}
    """
    if request.get("model") not in models:
        raise ModelError("cannot pass this request on",
                         f"there is no model {request.get('model')!r}",
                         f"ask for one of {', '.join(models)}")
    sent = {name: value for name, value in request.items()
            if name != "gateway" and value is not None}
    return sent | {"model": models[request["model"]]}


def upstream_request_test(upstream_request: Callable[[Mapping[str, Any], Mapping[str, str]],
                                                     dict[str, Any]]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `upstream_request` says, and
    fails on those that lose a part of a conversation with tools, or change it on its way.

    >>> upstream_request_test(upstream_request)
    >>> upstream_request_test(lambda request, models: {})
    Traceback (most recent call last):
    AssertionError
    """
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", None], "default": None}},
              "required": [], "additionalProperties": False}
    call = {"id": "call_1", "type": "function",
            "function": {"name": "now", "arguments": '{"unit": null}'}}
    request = {
        "model": "small", "temperature": 0, "stop": None, "user": "", "gateway": {"team": 7},
        "messages": [{"role": "user", "content": "How warm is it?", "name": "ann"},
                     {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "21"}],
        "tools": [{"type": "function", "function": {"name": "now", "description": "",
                                                    "strict": True, "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "now"}},
        "parallel_tool_calls": False}
    before = deepcopy(request)
    sent = upstream_request(request, {"small": "smollm2-135m"})
    assert request == before, "the client's own request was changed"
    wanted = {name: value for name, value in before.items() if name not in ("gateway", "stop")}
    assert sent == wanted | {"model": "smollm2-135m"}
    try:
        upstream_request(request | {"model": "large"}, {"small": "smollm2-135m"})
    except ModelError:
        return
    raise AssertionError("a request for a model that is not there was sent on")


def packed_matvec(packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray,
                  x: np.ndarray) -> np.ndarray:
    """Multiply a matrix that is kept in 4 bits with a vector.

    packed: (out, in/2) uint8; byte j of a row holds the code of column 2j in its low four bits,
    that of column 2j + 1 in its high ones. scales: (out, groups) float32; zeros: (out, groups)
    uint8 from 0 to 15; a group is in/groups neighbours of a row. A code, 0 to 15, stands for
    scale * (code - zero). x: (in,) float32; returns (out,) float32.

    >>> packed_matvec(np.array([[0x52, 0x0A]], np.uint8), np.array([[0.5, 2]], np.float32),
    ...               np.array([[2, 8]], np.uint8), np.array([9, 2, 1, 3], np.float32))
    array([-41.], dtype=float32)
    """
    codes = np.empty((len(packed), 2 * packed.shape[1]), np.float32)
    codes[:, ::2] = packed & 15
    codes[:, 1::2] = packed >> 4
    group = codes.shape[1] // scales.shape[1]
    weight = scales.repeat(group, axis=1) * (codes - zeros.repeat(group, axis=1))
    return weight @ x


def packed_matvec_test(packed_matvec: Callable[[np.ndarray, np.ndarray, np.ndarray,
                                                np.ndarray], np.ndarray]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `packed_matvec` says, and fails
    on those that read the codes of a byte in another order, or with another group's scale.

    >>> packed_matvec_test(packed_matvec)
    >>> packed_matvec_test(lambda packed, scales, zeros, x: scales[:, 0])
    Traceback (most recent call last):
    AssertionError
    """
    packed = np.array([[0x10, 0x32, 0x54, 0xF6], [0x98, 0xBA, 0xDC, 0x7E]], np.uint8)
    scales = np.array([[0.5, 2], [1, 0.25]], np.float32)
    zeros = np.array([[3, 9], [10, 1]], np.uint8)
    rows = [[-1.5, -1, -0.5, 0, -10, -8, -6, 12], [-2, -1, 0, 1, 2.75, 3, 3.25, 1.5]]
    for column, right in enumerate(zip(*rows)):          # one column after the other
        x = np.zeros(8, np.float32)
        x[column] = 1
        got = packed_matvec(packed, scales, zeros, x)
        assert np.allclose(got, right), (column, got, right)


def zero_points(qzeros: np.ndarray, version: int) -> np.ndarray:
    """The zero points of a 4-bit GPTQ checkpoint, from the integers that it keeps them in.

    qzeros: (groups, out/8) int32; each integer holds the zero points of eight outputs, the
    first in its lowest four bits. version: of the checkpoint's format. Version 2 stores a zero
    point as it is; version 1 stores it less one, and 0 as 15. Returns (groups, out) uint8, from
    0 to 15.

    >>> zero_points(np.array([[0x76543210]], np.int32), version=2)
    array([[0, 1, 2, 3, 4, 5, 6, 7]], dtype=uint8)
    >>> zero_points(np.array([[0x7654321F]], np.int32), version=1)
    array([[0, 2, 3, 4, 5, 6, 7, 8]], dtype=uint8)
    """
    shifts = np.arange(0, 32, 4)
    stored = (qzeros[..., None] >> shifts & 15).reshape(len(qzeros), -1)
    return ((stored + (version == 1)) % 16).astype(np.uint8)


def zero_points_test(zero_points: Callable[[np.ndarray, int], np.ndarray]) -> None:
    """A test: raises AssertionError, or whatever the function raises, unless it is right.

    It passes on every function that does what the docstring of `zero_points` says, and fails on
    those that read one version as if it were the other, or whose zero points leave their four
    bits.

    >>> zero_points_test(zero_points)
    >>> zero_points_test(lambda qzeros, version: qzeros)
    Traceback (most recent call last):
    AssertionError
    """
    qzeros = np.array([[0x76543210, 0xFEDCBA98], [0x5F0F8001, 0]], np.uint32).view(np.int32)
    stored = [[*range(16)], [1, 0, 0, 8, 15, 0, 15, 5, *8 * [0]]]
    later = [[(code + 1) % 16 for code in row] for row in stored]
    assert np.array_equal(zero_points(qzeros, 2), stored)
    assert np.array_equal(zero_points(qzeros, 1), later)
