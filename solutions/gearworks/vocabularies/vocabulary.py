"""Vocabularies of byte-level BPE, read from a `tokenizer.json` or from a GGUF file's metadata.

Both end in a `Vocabulary`, all that `gearworks.tokenizer.Tokenizer` needs. A GGUF vocabulary
goes through `tokenizer.json`, so the file that `transformers` loads and the tokenizer that the
engine uses cannot differ.

Left out on purpose and refused by name: SentencePiece (byte fallback, Unigram), WordPiece, and
every pre-tokenizer and normalizer whose rules `gearworks.tokenizer` does not hold. A tokenizer
that is almost right gives text that is almost right. `truncation` and `padding` are ignored: an
engine decides that for itself.

Sources: the file format of the `tokenizers` library; `tokenizer.ggml.*` in GGUF's documentation
and in llama.cpp.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from reprlib import Repr
from typing import Any, NoReturn

from gearworks.errors import FormatError

# A tokenizer.json names its pre-tokenizer by a pattern; `gearworks.tokenizer.splitter` holds
# the same rules by name.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITTER_OF_PATTERN = {GPT2_PATTERN: "gpt2", LLAMA3_PATTERN: "llama3", QWEN2_PATTERN: "qwen2"}

# A GGUF file names it in `tokenizer.ggml.pre`; these names mean rules that we hold.
SPLITTERS_OF_GGUF = {
    "gpt-2": ("gpt2",), "phi-2": ("gpt2",),
    "smollm": ("digits", "gpt2"), "starcoder": ("digits", "gpt2"), "refact": ("digits", "gpt2"),
    "llama-bpe": ("llama3",), "llama3": ("llama3",), "llama-v3": ("llama3",),
    "qwen2": ("qwen2",),
}
# the values of `tokenizer.ggml.token_type` that matter here
CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6

SPECIAL_ROLES = ("bos", "eos", "unk", "pad")
MAX_ID = 2**31 - 1

FETCH_AGAIN = ("the file is damaged or made by a faulty program: fetch it again, or use "
               "another copy of the model")
OTHER_MODEL = "use a model with a byte-level BPE tokenizer, such as SmolLM2, Llama 3 or Qwen 2"
OTHER_RULES = "use a model that cuts text as GPT-2, SmolLM2, StarCoder, Llama 3 or Qwen 2 do"


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text as it stands, before any other rule looks at the text.

    special: skipped when decoding for people, and ordinary text where the writer is not
    trusted.
    lstrip, rstrip: swallow the white space on that side. single_word: only where no word
    character touches it.
    normalized: looked for in the normalized text, not in the original.
    """

    content: str
    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """What a byte-level BPE tokenizer is made of.

    tokens: token, in the characters of `bytes_to_unicode` -> id. merges: (left id, right id) ->
    (rank, merged id).
    splitters: names for `gearworks.tokenizer.splitter`, in the order of use. normalization:
    Unicode forms, likewise.
    ignore_merges: a piece that is a token as a whole is not merged. unk_id: stands for a byte
    that no token holds; None leaves such bytes out. prefix, suffix: ids that belong around a
    text. specials: "bos", "eos", "unk", "pad" -> id.
    """

    tokens: Mapping[str, int]
    merges: Mapping[tuple[int, int], tuple[int, int]]
    added_tokens: tuple[AddedToken, ...] = ()
    splitters: tuple[str, ...] = ("gpt2",)
    normalization: tuple[str, ...] = ()
    ignore_merges: bool = False
    unk_id: int | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    specials: Mapping[str, int] = field(default_factory=dict)


def read_vocabulary(tokenizer: Mapping[str, Any],
                    config: Mapping[str, Any] | None = None) -> Vocabulary:
    """Read what `tokenizer.json` holds, and the special tokens of `tokenizer_config.json`.

    Without `config`, `specials` is empty. Whether BOS belongs before a text is said by the
    post-processor in `tokenizer.json`; `add_bos_token` in `tokenizer_config.json` changes
    nothing, as in transformers 5.
    Raises FormatError for what is missing, contradictory or of the wrong type, and for what is
    not supported, by name.

    >>> read_vocabulary({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
    ...                            "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel"},
    ...                  "decoder": {"type": "ByteLevel"}}).merges
    {(0, 1): (0, 2)}
    """
    model = _get(tokenizer, "model", dict)
    # The rules before the tokens: they are few, and what is not supported is told at once
    _require_byte_level_bpe(tokenizer, model)
    splitters = _read_pre_tokenizer(_get(tokenizer, "pre_tokenizer", dict, None))
    normalization = _read_normalizer(_get(tokenizer, "normalizer", dict, None))
    prefix, suffix = _read_post_processor(_get(tokenizer, "post_processor", dict, None))

    tokens = _read_tokens(_get(model, "vocab", dict))
    merges = _read_merges(_get(model, "merges", list), tokens)
    added_tokens = _read_added_tokens(_get(tokenizer, "added_tokens", list, []), tokens)
    unk_token = _get(model, "unk_token", str, None)
    if unk_token is not None and unk_token not in tokens:
        _malformed(f"its unk_token {_short(unk_token)} is not in the vocabulary")

    ids = tokens | {token.content: token.id for token in added_tokens}
    specials = _read_specials(config or {}, ids)
    # transformers makes every token that has a role an added token, whatever tokenizer.json
    # says of it
    known = {token.id for token in added_tokens}
    contents = {id: content for content, id in ids.items()}
    added_tokens += tuple(AddedToken(contents[id], id, special=True)
                          for id in dict.fromkeys(specials.values()) if id not in known)

    unknown_ids = {*prefix, *suffix} - {*ids.values()}
    if unknown_ids:
        _malformed(f"its post-processor adds id {min(unknown_ids)}, which no token has")
    return Vocabulary(tokens=tokens, merges=merges, added_tokens=added_tokens,
                      splitters=splitters, normalization=normalization,
                      ignore_merges=_get(model, "ignore_merges", bool, False),
                      unk_id=None if unk_token is None else tokens[unk_token], prefix=prefix,
                      suffix=suffix, specials=specials)


def tokenizer_json_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` that a GGUF file's publisher would have written, from its metadata.

    Raises FormatError for a vocabulary that is not byte-level BPE or has an unknown
    `tokenizer.ggml.pre`, by name, and for missing, contradictory or mistyped entries.

    >>> made = tokenizer_json_from_gguf({
    ...     "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    ...     "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab"],
    ...     "tokenizer.ggml.token_type": [3, 1, 1, 1], "tokenizer.ggml.merges": ["a b"]})
    >>> made["model"]["vocab"], [token["content"] for token in made["added_tokens"]]
    ({'<|end|>': 0, 'a': 1, 'b': 2, 'ab': 3}, ['<|end|>'])
    """
    splitters = _gguf_splitters(metadata)
    tokens = _gguf_tokens(metadata)
    added = [{"id": id, "content": token, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": kind == CONTROL}
             for id, (token, kind) in tokens.items() if kind in (CONTROL, USER_DEFINED)]

    # Added tokens that follow the vocabulary stay out of it, as published: Llama 3 looks whole
    # pieces up in the vocabulary and must find no control token there. `tokenizers` numbers
    # such tokens itself, so no id may be missing.
    ordinary = [id for id, (_, kind) in tokens.items() if kind not in (CONTROL, USER_DEFINED)]
    size = 1 + max(ordinary, default=-1) if [*tokens] == [*range(len(tokens))] else MAX_ID
    vocab = {token: id for id, (token, _) in tokens.items() if id < size}

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if splitters == ("digits", "gpt2"):
        steps = [{"type": "Digits", "individual_digits": True},
                 byte_level | {"use_regex": True}]
    elif splitters == ("gpt2",):
        steps = [byte_level | {"use_regex": True}]
    else:
        pattern = {"llama3": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}[splitters[0]]
        steps = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                  "invert": False}, byte_level | {"use_regex": False}]
    pre_tokenizer = ({"type": "Sequence", "pretokenizers": steps} if len(steps) > 1
                     else steps[0])
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if splitters == ("qwen2",) else None,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": _gguf_post_processor(metadata, tokens),
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": splitters == ("llama3",),
                      "vocab": vocab, "merges": _strings(metadata, "tokenizer.ggml.merges")}}


def tokenizer_config_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What goes into `tokenizer_config.json` with it: special tokens, context, chat template.

    `model_max_length` is the context in tokens. Raises FormatError like
    `tokenizer_json_from_gguf`.

    >>> config = tokenizer_config_from_gguf({
    ...     "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    ...     "tokenizer.ggml.tokens": ["<|end|>", "a"], "tokenizer.ggml.eos_token_id": 0,
    ...     "general.architecture": "llama", "llama.context_length": 8192})
    >>> config["eos_token"], config["add_bos_token"], config["model_max_length"]
    ('<|end|>', False, 8192)
    """
    tokens = _gguf_tokens(metadata)
    config = {"tokenizer_class": "PreTrainedTokenizerFast",
              "clean_up_tokenization_spaces": False, "add_prefix_space": False,
              "add_bos_token": _gguf_adds(metadata, "bos"),
              "add_eos_token": _gguf_adds(metadata, "eos")}
    for role in SPECIAL_ROLES:
        id = _gguf_special_id(metadata, role, tokens)
        config[f"{role}_token"] = None if id is None else tokens[id][0]
    architecture = metadata.get("general.architecture")
    context = _get(metadata, f"{architecture}.context_length", int, None)
    if context is not None:
        config["model_max_length"] = context
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = _get(metadata, "tokenizer.chat_template", str)
    return config


# --- tokenizer.json, part by part


def _require_byte_level_bpe(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    kind = _get(model, "type", str, "BPE")
    if kind != "BPE":
        _unsupported(f"its model is {_short(kind)}, and only BPE is supported")
    if _get(model, "byte_fallback", bool, False):
        _unsupported("it is a SentencePiece vocabulary (BPE with byte_fallback), not "
                     "byte-level BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            _unsupported(f"its BPE model has a {key} ({_short(model[key])})")
    if model.get("unk_token") is not None and model.get("fuse_unk"):
        _unsupported("its BPE model joins unknown characters (fuse_unk)")
    decoder = _get(tokenizer, "decoder", dict, {})
    if decoder.get("type") != "ByteLevel":
        _unsupported(f"its decoder is {_type_name(decoder)}, and only ByteLevel is supported")


def _read_tokens(vocab: Mapping[str, Any]) -> dict[str, int]:
    for token, id in vocab.items():
        if type(id) is not int or not 0 <= id <= MAX_ID:
            _malformed(f"the id of token {token[:40]!r} is {_short(id)}, where a non-negative "
                       "integer is needed")
    if len({*vocab.values()}) < len(vocab):
        holders = {}
        for token, id in vocab.items():
            if holders.setdefault(id, token) is not token:
                _malformed(f"tokens {holders[id][:40]!r} and {token[:40]!r} "
                           f"have the same id, {id}")
    _require_characters("\n".join(vocab))                   # two halves of a pair must not meet
    return dict(vocab)


def _read_merges(merges: Iterable[Any],
                 tokens: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, int]]:
    ranks = {}
    for rank, merge in enumerate(merges):
        try:
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            ranks[tokens[left], tokens[right]] = rank, tokens[left + right]
        except (TypeError, ValueError, KeyError):
            _refuse_merge(rank, merge, tokens)
    return ranks


def _refuse_merge(rank: int, merge: Any, tokens: Mapping[str, int]) -> NoReturn:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or [*map(type, parts)] != [str, str]:
        _malformed(f"merge {rank} is {_short(merge)}, where two tokens are needed")
    missing = next(token for token in (*parts, "".join(parts)) if token not in tokens)
    _malformed(f"merge {rank} ({_short(merge)}) needs token {missing[:40]!r}, "
               "which is not in the vocabulary")


def _read_added_tokens(entries: Iterable[Any],
                       tokens: Mapping[str, int]) -> tuple[AddedToken, ...]:
    holders = {id: token for token, id in tokens.items()}
    added = {}
    for entry in entries:
        if not isinstance(entry, dict):
            _malformed(f"an added token is {_short(entry)}, where an object is needed")
        content, id = _get(entry, "content", str), _get(entry, "id", int)
        _require_characters(content)
        if not content or content in added:
            _malformed(f"added token {content[:40]!r} is empty or listed twice")
        if (not 0 <= id <= MAX_ID or tokens.get(content, id) != id
            or holders.setdefault(id, content) != content):
            _malformed(f"the id of added token {content[:40]!r} is {id}, which contradicts the "
                       "other tokens")
        flags = {key: _get(entry, key, bool, False)
                 for key in ("special", "lstrip", "rstrip", "single_word", "normalized")}
        added[content] = AddedToken(content, id, **flags)
    return tuple(added.values())


def _read_normalizer(normalizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    steps = _steps(normalizer, "normalizers")
    for step in steps:
        if step.get("type") not in ("NFC", "NFD", "NFKC", "NFKD"):
            _unsupported(f"its normalizer is {_type_name(step)}, and only NFC, NFD, NFKC and "
                         "NFKD are supported", OTHER_RULES)
    return tuple(step["type"] for step in steps)


def _read_pre_tokenizer(pre_tokenizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    *steps, last = _steps(pre_tokenizer, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel":
        _unsupported(f"the last step of its pre-tokenizer is {_type_name(last)}, and only "
                     "ByteLevel is supported")
    if _get(last, "add_prefix_space", bool, False):
        _unsupported("it puts a space before the text (ByteLevel with add_prefix_space)",
                     OTHER_RULES)
    splitters = tuple(_read_splitter(step) for step in steps)
    return splitters + ("gpt2",) if _get(last, "use_regex", bool, True) else splitters


def _read_splitter(step: Mapping[str, Any]) -> str:
    kind = step.get("type")
    if kind == "Digits" and _get(step, "individual_digits", bool, False):
        return "digits"
    if kind == "Split":
        pattern = _get(step, "pattern", dict).get("Regex")
        # Our patterns cover every text, so keeping only the matches is the same as keeping what
        # lies between them too.
        keeps_matches = ((step.get("behavior"), step.get("invert", False))
                         in (("Isolated", False), ("Removed", True)))
        if keeps_matches and isinstance(pattern, str) and pattern in SPLITTER_OF_PATTERN:
            return SPLITTER_OF_PATTERN[pattern]
        rule = pattern[:80] if keeps_matches and isinstance(pattern, str) else _short(step)
        _unsupported("it is byte-level BPE, but cuts text by a pattern that is not known here: "
                     f"{rule}", OTHER_RULES)
    _unsupported("it is byte-level BPE, but cuts text by a step that is not known here, "
                 f"{_type_name(step)} ({_short(step)})", OTHER_RULES)


def _read_post_processor(
        post_processor: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    prefix, suffix = (), ()
    for step in _steps(post_processor, "processors"):
        if step.get("type") == "ByteLevel":             # concerns offsets, not ids
            continue
        if step.get("type") != "TemplateProcessing":
            _unsupported(f"its post-processor is {_type_name(step)}, and only "
                         "TemplateProcessing is supported", OTHER_RULES)
        ids, text_at = [], []
        for part in _objects(step, "single"):
            if "Sequence" in part:
                text_at.append(len(ids))
            else:
                name = _get(_get(part, "SpecialToken", dict), "id", str)
                ids += _get(_get(_get(step, "special_tokens", dict), name, dict), "ids", list)
        if len(text_at) != 1 or not all(type(id) is int for id in ids):
            _malformed(f"its post-processor's template is {_short(step['single'])}")
        prefix, suffix = (*ids[:text_at[0]], *prefix), (*suffix, *ids[text_at[0]:])
    return prefix, suffix


def _read_specials(config: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, int]:
    specials = {}
    for role in SPECIAL_ROLES:
        token = config.get(f"{role}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token is None:
            continue
        if not isinstance(token, str) or token not in ids:
            _malformed(f"{role}_token in tokenizer_config.json is {_short(token)}, which is "
                       "not in the vocabulary")
        specials[role] = ids[token]
    return specials


# --- GGUF metadata, part by part


def _gguf_splitters(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    model = _get(metadata, "tokenizer.ggml.model", str)
    if model != "gpt2":
        known = {"llama": "SentencePiece", "bert": "WordPiece", "t5": "Unigram"}
        _unsupported(f"its model is {_short(model)} ({known.get(model, 'unknown')}), not "
                     "'gpt2' (byte-level BPE)")
    pre = _get(metadata, "tokenizer.ggml.pre", str)
    if pre not in SPLITTERS_OF_GGUF:
        _unsupported("it is byte-level BPE, but cuts text by a rule that is not known here, "
                     f"{_short(pre)}; known are {', '.join(SPLITTERS_OF_GGUF)}", OTHER_RULES)
    if _get(metadata, "tokenizer.ggml.add_space_prefix", bool, False):
        _unsupported("it puts a space before the text (tokenizer.ggml.add_space_prefix)",
                     OTHER_RULES)
    return SPLITTERS_OF_GGUF[pre]


def _gguf_tokens(metadata: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """id -> (token, type), without the unused ids that only pad the embedding."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    try:
        kinds = [1] * len(tokens) if kinds is None else [index(kind) for kind in kinds]
    except TypeError:
        _malformed("'tokenizer.ggml.token_type' is not a list of integers")
    if len(kinds) != len(tokens):
        _malformed(f"it has {len(tokens)} tokens and {len(kinds)} token types")
    if BYTE in kinds:
        _unsupported(f"token {tokens[kinds.index(BYTE)]!r} stands for a byte, as in "
                     "SentencePiece vocabularies")
    ids = {}
    for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind != UNUSED and ids.setdefault(token, id) != id:
            _malformed(f"token {token[:40]!r} has two ids, {ids[token]} and {id}")
    return {id: (token, kinds[id]) for token, id in ids.items()}


def _gguf_special_id(metadata: Mapping[str, Any], role: str,
                     tokens: Mapping[int, Any]) -> int | None:
    key = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}[role]
    id = _get(metadata, f"tokenizer.ggml.{key}_token_id", int, None)
    if id is not None and id not in tokens:
        _malformed(f"its {role} token has id {id}, which no token has")
    return id


def _gguf_adds(metadata: Mapping[str, Any], role: str) -> bool:
    # llama.cpp puts BOS before a text for Llama 3's vocabulary unless the file says otherwise
    default = role == "bos" and _gguf_splitters(metadata) == ("llama3",)
    return _get(metadata, f"tokenizer.ggml.add_{role}_token", bool, default)


def _gguf_post_processor(metadata: Mapping[str, Any],
                         tokens: Mapping[int, tuple[str, int]]) -> dict[str, Any] | None:
    around, special_tokens = {"bos": [], "eos": []}, {}
    for role in ("bos", "eos"):
        if _gguf_adds(metadata, role):
            id = _gguf_special_id(metadata, role, tokens)
            if id is None:
                _malformed(f"it adds a {role} token, and names none")
            around[role] = [tokens[id][0]]
            special_tokens[tokens[id][0]] = {"id": tokens[id][0], "ids": [id],
                                             "tokens": [tokens[id][0]]}
    if not special_tokens:
        return None

    def template(sequence: str, type_id: int) -> list[dict[str, Any]]:
        special = {role: [{"SpecialToken": {"id": token, "type_id": type_id}}
                          for token in around[role]] for role in around}
        return [*special["bos"], {"Sequence": {"id": sequence, "type_id": type_id}},
                *special["eos"]]

    return {"type": "TemplateProcessing", "single": template("A", 0),
            "pair": template("A", 0) + template("B", 1), "special_tokens": special_tokens}


# --- reading values that nobody has checked yet

_REQUIRED = object()
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer",
               bool: "true or false"}


def _get(holder: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = holder.get(key, default)
    if value is _REQUIRED:
        _malformed(f"{key!r} is missing")
    if value is default or (value is None and default is not _REQUIRED):
        return default
    if type(value) is not kind:                        # not isinstance: true is no integer here
        _malformed(f"{key!r} is {_short(value)}, where {_TYPE_NAMES[kind]} is needed")
    return value


def _objects(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = _get(holder, key, list)
    if not all(isinstance(entry, dict) for entry in entries):
        _malformed(f"{key!r} is {_short(entries)}, where a list of objects is needed")
    return entries


def _steps(component: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The steps of a Sequence, or the one step that this is, or none."""
    if component is None:
        return []
    return _objects(component, key) if component.get("type") == "Sequence" else [component]


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = _get(metadata, key, list)
    if not all(isinstance(value, str) for value in values):
        _malformed(f"{key!r} holds something that is not a string")
    return values


def _require_characters(token: str) -> None:
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        _malformed(f"token {token[:40]!r} holds half a surrogate pair")


_brief = Repr()                        # a hostile value may be too large, or too deep, for repr
_brief.maxstring = _brief.maxother = 80
_short = _brief.repr


def _type_name(step: Mapping[str, Any]) -> str:
    return _short(step["type"]) if "type" in step else "missing"


def _malformed(why: str) -> NoReturn:
    raise FormatError("cannot read this vocabulary", why, FETCH_AGAIN)


def _unsupported(why: str, hint: str = OTHER_MODEL) -> NoReturn:
    raise FormatError("cannot use this vocabulary", why, hint)
