"""A byte-level BPE vocabulary as a GGUF file's metadata: the reverse of reading it there.

Source: `tokenizer.ggml.*` in GGUF's documentation, and convert_hf_to_gguf.py of llama.cpp.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from gearworks.errors import ModelError
from gearworks.vocabularies.patterns import SPLITTERS_OF_GGUF, WHOLE_PIECES
from gearworks.vocabularies.vocabulary import CONTROL, UNUSED, USER_DEFINED, Vocabulary

NORMAL = 1
NORMALIZATION = {"qwen2": ("NFC",)}         # llama.cpp knows it by the splitter's name


def vocabulary_to_gguf(vocabulary: Vocabulary, vocab_size: int, eos_ids: Collection[int],
                       chat_template: str | None) -> dict[str, Any]:
    """The metadata of a vocabulary, by key.

    vocab_size: rows of the embedding; ids without a token get one that is never used. eos_ids:
    all that end an answer, of which GGUF can name three. Raises ModelError for what GGUF cannot
    hold.

    >>> vocabulary = Vocabulary({"a": 0, "b": 1, "ab": 2}, {(0, 1): (0, 2)})
    >>> made = vocabulary_to_gguf(vocabulary, 4, [2], None)
    >>> made["tokenizer.ggml.tokens"], made["tokenizer.ggml.merges"]
    (['a', 'b', 'ab', '[PAD3]'], ['a b'])
    """
    if vocabulary.sentencepiece is not None:
        raise _impossible("it is a SentencePiece vocabulary, and only byte-level ones are "
                          "written")
    pre = next((name for name, splitters in SPLITTERS_OF_GGUF.items()
                if splitters == vocabulary.splitters), None)
    if pre is None or vocabulary.normalization != NORMALIZATION.get(pre, ()):
        raise _impossible("it cuts or normalizes text by rules that have no name there")
    if vocabulary.ignore_merges != (vocabulary.splitters in WHOLE_PIECES):
        raise _impossible("ignore_merges is not what its rules for cutting text imply")
    own = {vocabulary.specials.get("eos"), *eos_ids} - {None}
    ends = sorted(own, key=lambda id: id != vocabulary.specials.get("eos"))
    if len(ends) > 3:
        raise _impossible(f"{len(ends)} tokens end its answers, and three can be named")
    tokens = {id: (token, NORMAL) for token, id in vocabulary.tokens.items()}
    for token in vocabulary.added_tokens:
        if token.lstrip or token.rstrip or token.single_word:
            raise _impossible(f"its token {token.content[:40]!r} takes white space along, or "
                              "minds its neighbours")
        tokens[token.id] = token.content, CONTROL if token.special else USER_DEFINED
    texts = [tokens.get(id, (f"[PAD{id}]", UNUSED)) for id in range(vocab_size)]
    contents = {id: token for id, (token, _) in tokens.items()}
    merges = sorted(vocabulary.merges, key=lambda pair: vocabulary.merges[pair][0])
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in texts],
        "tokenizer.ggml.token_type": np.array([kind for _, kind in texts], np.int32),
        "tokenizer.ggml.merges": [f"{contents[a]} {contents[b]}" for a, b in merges]}
    for role, around in (("bos", vocabulary.prefix), ("eos", vocabulary.suffix)):
        if around not in ((), (vocabulary.specials.get(role),)):
            raise _impossible(f"it puts the ids {list(around)} around a text")
        metadata[f"tokenizer.ggml.add_{role}_token"] = bool(around)
    for role, name in (("bos", "bos"), ("unk", "unknown"), ("pad", "padding")):
        if role in vocabulary.specials:
            metadata[f"tokenizer.ggml.{name}_token_id"] = vocabulary.specials[role]
    for name, id in zip(("eos", "eot", "eom"), ends):
        metadata[f"tokenizer.ggml.{name}_token_id"] = id
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    return metadata


def _impossible(why: str) -> ModelError:
    return ModelError("cannot write this vocabulary to a GGUF file", why,
                      "save the model as a folder, which holds its tokenizer as it is")
