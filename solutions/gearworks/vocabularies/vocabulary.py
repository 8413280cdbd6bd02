"""Vocabularies, read from a `tokenizer.json` or from a GGUF file's metadata.

Both end in a `Vocabulary`, all that `gearworks.tokenizer.Tokenizer` needs. A GGUF vocabulary
goes through `tokenizer.json`, so the file that `transformers` loads and the tokenizer that the
engine uses cannot differ.

What is said here is said of byte-level BPE; SentencePiece's rules are in `sentencepiece_rules`.
Left out on purpose and refused by name: WordPiece, and every pre-tokenizer and normalizer whose
rules are not held here. A tokenizer that is almost right gives text that is almost right.
`truncation` and `padding` are ignored: an engine decides that for itself.

Sources: the file format of the `tokenizers` library; `tokenizer.ggml.*` in GGUF's documentation
and in llama.cpp.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, NoReturn

from gearworks.vocabularies.document import (OTHER_RULES, get, malformed, objects,
                                             require_characters, short, steps_of, strings,
                                             type_name, unsupported)
from gearworks.vocabularies.patterns import (PATTERN_OF_SPLITTER, SPLITTER_OF_PATTERN,
                                             SPLITTERS_OF_GGUF, WHOLE_PIECES, WITH_BOS)
from gearworks.vocabularies.sentencepiece_gguf import (BYTE, SPECIAL_IDS, UNKNOWN,
                                                       sentencepiece_parts)
from gearworks.vocabularies.sentencepiece_rules import (SentencePieceRules, is_sentencepiece,
                                                        read_rules, read_scores)

# the values of `tokenizer.ggml.token_type` that matter here
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

SPECIAL_ROLES = ("bos", "eos", "unk", "pad")
MAX_ID = 2**31 - 1


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
    """What a tokenizer is made of: of byte-level BPE, or of SentencePiece.

    tokens: token, in the characters of `bytes_to_unicode` -> id. merges: (left id, right id) ->
    (rank, merged id).
    splitters: names for `gearworks.tokenizer.splitter`, in the order of use. normalization:
    Unicode forms, likewise.
    ignore_merges: a piece that is a token as a whole is not merged. unk_id: stands for a byte
    that no token holds; None leaves such bytes out. prefix, suffix: ids that belong around a
    text. specials: "bos", "eos", "unk", "pad" -> id.
    sentencepiece: its rules, if it is one. Then tokens are written in characters, a space as
    "▁", and splitters and normalization say nothing.
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
    sentencepiece: SentencePieceRules | None = None

    @property
    def ids(self) -> frozenset[int]:
        """The ids that have a token."""
        return frozenset(self.tokens.values()) | {token.id for token in self.added_tokens}


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
    model = get(tokenizer, "model", dict)
    # The rules before the tokens: they are few, and what is not supported is told at once
    sentencepiece, splitters, normalization = None, (), ()
    if is_sentencepiece(tokenizer):
        sentencepiece = read_rules(tokenizer)
    else:
        _require_byte_level_bpe(tokenizer, model)
        splitters = _read_pre_tokenizer(get(tokenizer, "pre_tokenizer", dict, None))
        normalization = _read_normalizer(get(tokenizer, "normalizer", dict, None))
    prefix, suffix = _read_post_processor(get(tokenizer, "post_processor", dict, None))

    if model.get("type") == "Unigram":
        scores = read_scores(get(model, "vocab", list))
        sentencepiece = replace(sentencepiece, scores=scores)
        tokens = _read_tokens({piece: id for id, piece in enumerate(scores)})
        merges, unk_id = {}, get(model, "unk_id", int)
        if not 0 <= unk_id < len(tokens):
            malformed(f"its unk_id is {unk_id}, and it has {len(tokens)} pieces")
    else:
        tokens = _read_tokens(get(model, "vocab", dict))
        merges = _read_merges(get(model, "merges", list), tokens)
        unk_token = get(model, "unk_token", str, None)
        if unk_token is not None and unk_token not in tokens:
            malformed(f"its unk_token {short(unk_token)} is not in the vocabulary")
        unk_id = None if unk_token is None else tokens[unk_token]
    added_tokens = _read_added_tokens(get(tokenizer, "added_tokens", list, []), tokens)

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
        malformed(f"its post-processor adds id {min(unknown_ids)}, which no token has")
    return Vocabulary(tokens=tokens, merges=merges, added_tokens=added_tokens,
                      splitters=splitters, normalization=normalization,
                      ignore_merges=get(model, "ignore_merges", bool, False),
                      unk_id=unk_id, prefix=prefix, suffix=suffix, specials=specials,
                      sentencepiece=sentencepiece)


def tokenizer_json_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` that a GGUF file's publisher would have written, from its metadata.

    Raises FormatError for a vocabulary that is neither byte-level BPE nor SentencePiece, or has
    an unknown `tokenizer.ggml.pre`, by name, and for missing, contradictory or mistyped
    entries.

    >>> made = tokenizer_json_from_gguf({
    ...     "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    ...     "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab"],
    ...     "tokenizer.ggml.token_type": [3, 1, 1, 1], "tokenizer.ggml.merges": ["a b"]})
    >>> made["model"]["vocab"], [token["content"] for token in made["added_tokens"]]
    ({'<|end|>': 0, 'a': 1, 'b': 2, 'ab': 3}, ['<|end|>'])
    """
    sentencepiece = metadata.get("tokenizer.ggml.model") in SPECIAL_IDS
    splitters = () if sentencepiece else _gguf_splitters(metadata)
    tokens = _gguf_tokens(metadata)
    added_kinds = {CONTROL, USER_DEFINED, *([UNKNOWN] if sentencepiece else [])}
    added = [{"id": id, "content": token, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": kind != USER_DEFINED}
             for id, (token, kind) in tokens.items() if kind in added_kinds]

    # Added tokens that follow the vocabulary stay out of it, as published: Llama 3 looks whole
    # pieces up in the vocabulary and must find no control token there. `tokenizers` numbers
    # such tokens itself, so no id may be missing.
    ordinary = [id for id, (_, kind) in tokens.items() if kind not in added_kinds]
    size = 1 + max(ordinary, default=-1) if [*tokens] == [*range(len(tokens))] else MAX_ID
    tokens_of_model = {id: token for id, token in tokens.items() if id < size}
    parts = (sentencepiece_parts(metadata, tokens_of_model,
                                 _gguf_special_id(metadata, "unk", tokens))
             if sentencepiece else _byte_level_parts(metadata, splitters, tokens_of_model))
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": parts["normalizer"], "pre_tokenizer": parts["pre_tokenizer"],
            "post_processor": _gguf_post_processor(metadata, tokens),
            "decoder": parts["decoder"], "model": parts["model"]}


def _byte_level_parts(metadata: Mapping[str, Any], splitters: tuple[str, ...],
                      tokens: Mapping[int, tuple[str, int]]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    *before, last = splitters
    steps = [_splitting_step(name) for name in before]
    if last == "gpt2":
        steps.append(byte_level | {"use_regex": True})
    else:
        steps += [_splitting_step(last), byte_level | {"use_regex": False}]
    return {"normalizer": {"type": "NFC"} if splitters == ("qwen2",) else None,
            "pre_tokenizer": ({"type": "Sequence", "pretokenizers": steps} if len(steps) > 1
                              else steps[0]),
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                        "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": splitters in WHOLE_PIECES,
                      "vocab": {token: id for id, (token, _) in tokens.items()},
                      "merges": strings(metadata, "tokenizer.ggml.merges")}}


def _splitting_step(name: str) -> dict[str, Any]:
    if name == "digits":
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": PATTERN_OF_SPLITTER[name]},
            "behavior": "Isolated", "invert": False}


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
    context = get(metadata, f"{architecture}.context_length", int, None)
    if context is not None:
        config["model_max_length"] = context
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = get(metadata, "tokenizer.chat_template", str)
    return config


# --- tokenizer.json, part by part


def _require_byte_level_bpe(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    kind = get(model, "type", str, "BPE")
    if kind != "BPE":
        unsupported(f"its model is {short(kind)}, and BPE and Unigram are supported")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            unsupported(f"its BPE model has a {key} ({short(model[key])})")
    if model.get("unk_token") is not None and model.get("fuse_unk"):
        unsupported("its BPE model joins unknown characters (fuse_unk)")
    decoder = get(tokenizer, "decoder", dict, {})
    if decoder.get("type") != "ByteLevel":
        unsupported(f"its decoder is {type_name(decoder)}, and only ByteLevel is supported")


def _read_tokens(vocab: Mapping[str, Any]) -> dict[str, int]:
    for token, id in vocab.items():
        if type(id) is not int or not 0 <= id <= MAX_ID:
            malformed(f"the id of token {token[:40]!r} is {short(id)}, where a non-negative "
                      "integer is needed")
    if len({*vocab.values()}) < len(vocab):
        holders = {}
        for token, id in vocab.items():
            if holders.setdefault(id, token) is not token:
                malformed(f"tokens {holders[id][:40]!r} and {token[:40]!r} "
                          f"have the same id, {id}")
    require_characters("\n".join(vocab))                   # two halves of a pair must not meet
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
        malformed(f"merge {rank} is {short(merge)}, where two tokens are needed")
    missing = next(token for token in (*parts, "".join(parts)) if token not in tokens)
    malformed(f"merge {rank} ({short(merge)}) needs token {missing[:40]!r}, "
              "which is not in the vocabulary")


def _read_added_tokens(entries: Iterable[Any],
                       tokens: Mapping[str, int]) -> tuple[AddedToken, ...]:
    holders = {id: token for token, id in tokens.items()}
    added = {}
    for entry in entries:
        if not isinstance(entry, dict):
            malformed(f"an added token is {short(entry)}, where an object is needed")
        content, id = get(entry, "content", str), get(entry, "id", int)
        require_characters(content)
        if not content or content in added:
            malformed(f"added token {content[:40]!r} is empty or listed twice")
        if (not 0 <= id <= MAX_ID or tokens.get(content, id) != id
            or holders.setdefault(id, content) != content):
            malformed(f"the id of added token {content[:40]!r} is {id}, which contradicts the "
                      "other tokens")
        flags = {key: get(entry, key, bool, False)
                 for key in ("special", "lstrip", "rstrip", "single_word", "normalized")}
        added[content] = AddedToken(content, id, **flags)
    return tuple(added.values())


def _read_normalizer(normalizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    steps = steps_of(normalizer, "normalizers")
    for step in steps:
        if step.get("type") not in ("NFC", "NFD", "NFKC", "NFKD"):
            unsupported(f"its normalizer is {type_name(step)}, and only NFC, NFD, NFKC and "
                        "NFKD are supported", OTHER_RULES)
    return tuple(step["type"] for step in steps)


def _read_pre_tokenizer(pre_tokenizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    *steps, last = steps_of(pre_tokenizer, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel":
        unsupported(f"the last step of its pre-tokenizer is {type_name(last)}, and only "
                    "ByteLevel is supported")
    if get(last, "add_prefix_space", bool, False):
        unsupported("it puts a space before the text (ByteLevel with add_prefix_space)",
                    OTHER_RULES)
    splitters = tuple(_read_splitter(step) for step in steps)
    return splitters + ("gpt2",) if get(last, "use_regex", bool, True) else splitters


def _read_splitter(step: Mapping[str, Any]) -> str:
    kind = step.get("type")
    if kind == "Digits" and get(step, "individual_digits", bool, False):
        return "digits"
    if kind == "Split":
        pattern = get(step, "pattern", dict).get("Regex")
        # Our patterns cover every text, so keeping only the matches is the same as keeping what
        # lies between them too.
        keeps_matches = ((step.get("behavior"), step.get("invert", False))
                         in (("Isolated", False), ("Removed", True)))
        if keeps_matches and isinstance(pattern, str) and pattern in SPLITTER_OF_PATTERN:
            return SPLITTER_OF_PATTERN[pattern]
        rule = pattern[:80] if keeps_matches and isinstance(pattern, str) else short(step)
        unsupported("it is byte-level BPE, but cuts text by a pattern that is not known here: "
                    f"{rule}", OTHER_RULES)
    unsupported("it is byte-level BPE, but cuts text by a step that is not known here, "
                f"{type_name(step)} ({short(step)})", OTHER_RULES)


def _read_post_processor(
        post_processor: Mapping[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    prefix, suffix = (), ()
    for step in steps_of(post_processor, "processors"):
        if step.get("type") == "ByteLevel":             # concerns offsets, not ids
            continue
        if step.get("type") != "TemplateProcessing":
            unsupported(f"its post-processor is {type_name(step)}, and only "
                        "TemplateProcessing is supported", OTHER_RULES)
        ids, text_at = [], []
        for part in objects(step, "single"):
            if "Sequence" in part:
                text_at.append(len(ids))
            else:
                name = get(get(part, "SpecialToken", dict), "id", str)
                ids += get(get(get(step, "special_tokens", dict), name, dict), "ids", list)
        if len(text_at) != 1 or not all(type(id) is int for id in ids):
            malformed(f"its post-processor's template is {short(step['single'])}")
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
            malformed(f"{role}_token in tokenizer_config.json is {short(token)}, which is "
                      "not in the vocabulary")
        specials[role] = ids[token]
    return specials


# --- GGUF metadata, part by part


def _gguf_splitters(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    model = get(metadata, "tokenizer.ggml.model", str)
    if model != "gpt2":
        known = {"bert": "WordPiece", "rwkv": "its own"}
        unsupported(f"its model is {short(model)} ({known.get(model, 'unknown')}), not "
                    "'gpt2' (byte-level BPE), 'llama' or 't5' (SentencePiece)")
    pre = get(metadata, "tokenizer.ggml.pre", str)
    if pre not in SPLITTERS_OF_GGUF:
        unsupported("it is byte-level BPE, but cuts text by a rule that is not known here, "
                    f"{short(pre)}; known are {', '.join(SPLITTERS_OF_GGUF)}", OTHER_RULES)
    if get(metadata, "tokenizer.ggml.add_space_prefix", bool, False):
        unsupported("it puts a space before the text (tokenizer.ggml.add_space_prefix)",
                    OTHER_RULES)
    return SPLITTERS_OF_GGUF[pre]


def _gguf_tokens(metadata: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """id -> (token, type), without the unused ids that only pad the embedding."""
    tokens = strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    try:
        kinds = [1] * len(tokens) if kinds is None else [index(kind) for kind in kinds]
    except TypeError:
        malformed("'tokenizer.ggml.token_type' is not a list of integers")
    if len(kinds) != len(tokens):
        malformed(f"it has {len(tokens)} tokens and {len(kinds)} token types")
    if BYTE in kinds and metadata.get("tokenizer.ggml.model") not in SPECIAL_IDS:
        unsupported(f"token {tokens[kinds.index(BYTE)]!r} stands for a byte, as in "
                    "SentencePiece vocabularies")
    ids = {}
    for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind != UNUSED and ids.setdefault(token, id) != id:
            malformed(f"token {token[:40]!r} has two ids, {ids[token]} and {id}")
    return {id: (token, kinds[id]) for token, id in ids.items()}


def _gguf_special_id(metadata: Mapping[str, Any], role: str,
                     tokens: Mapping[int, Any]) -> int | None:
    key = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}[role]
    usual = SPECIAL_IDS.get(metadata.get("tokenizer.ggml.model"), {}).get(role)
    id = get(metadata, f"tokenizer.ggml.{key}_token_id", int,
             usual if usual in tokens else None)
    if id is not None and id not in tokens:
        malformed(f"its {role} token has id {id}, which no token has")
    return id


def _gguf_adds(metadata: Mapping[str, Any], role: str) -> bool:
    # what llama.cpp puts around a text unless the file says otherwise
    model = metadata.get("tokenizer.ggml.model")
    if model in SPECIAL_IDS:
        default = role == {"llama": "bos", "t5": "eos"}[model]
    else:
        default = role == "bos" and _gguf_splitters(metadata) in WITH_BOS
    return get(metadata, f"tokenizer.ggml.add_{role}_token", bool, default)


def _gguf_post_processor(metadata: Mapping[str, Any],
                         tokens: Mapping[int, tuple[str, int]]) -> dict[str, Any] | None:
    around, special_tokens = {"bos": [], "eos": []}, {}
    for role in ("bos", "eos"):
        if _gguf_adds(metadata, role):
            id = _gguf_special_id(metadata, role, tokens)
            if id is None:
                malformed(f"it adds a {role} token, and names none")
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
