"""SentencePiece vocabularies in GGUF files: the parts of the `tokenizer.json` that they mean.

`tokenizer.ggml.model` is "llama" for BPE and "t5" for Unigram. Both list tokens with their
scores. BPE has no list of merges then: SentencePiece joins the neighbours whose result has the
highest score, so every way to make a token from two others is a merge, ranked by its score.

Source: `tokenizer.ggml.*` in GGUF's documentation and llama.cpp; the order of merges as in the
tokenizer.json that Llama 2 and its kind were published with.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from gearworks.vocabularies.document import get, malformed, strings, unsupported
from gearworks.vocabularies.sentencepiece_rules import SPACE

NORMAL, UNKNOWN, BYTE = 1, 2, 6
# Both models, and the tokens with a role in files that do not name them
SPECIAL_IDS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "t5": {"eos": 1, "unk": 2, "pad": 0}}


def sentencepiece_parts(metadata: Mapping[str, Any], tokens: Mapping[int, tuple[str, int]],
                        unk_id: int | None) -> dict[str, Any]:
    """Normalizer, pre-tokenizer, decoder and model, by their names in `tokenizer.json`.

    tokens: id -> (token, type). unk_id: the unknown token. Raises FormatError for what is
    missing or mistyped.

    >>> parts = sentencepiece_parts(
    ...     {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0],
    ...      "tokenizer.ggml.tokens": ["<unk>", "ab", "a", "b"]},
    ...     {0: ("<unk>", 2), 1: ("ab", 1), 2: ("a", 1), 3: ("b", 1)}, unk_id=0)
    >>> parts["model"]["merges"], parts["normalizer"]["normalizers"][0]["prepend"]
    ([['a', 'b']], '▁')
    """
    scores = _numbers(metadata, "tokenizer.ggml.scores", np.float32)
    if len(scores) != len(strings(metadata, "tokenizer.ggml.tokens")):
        malformed(f"it has {len(scores)} scores, and not one for each token")
    if not np.isfinite(scores).all():
        malformed("a score is not finite")
    if metadata["tokenizer.ggml.model"] == "llama":
        return _bpe(metadata, tokens, scores, unk_id)
    return _unigram(metadata, scores, unk_id)


def merges_from_scores(scores: Mapping[str, float]) -> list[list[str]]:
    """Every way to make a token from two others, best score first, then as the tokens stand.

    scores: token -> score, in the order of ids.

    >>> merges_from_scores({"a": -3.0, "b": -4.0, "ab": -2.0, "aba": -1.0, "ba": -5.0})
    [['a', 'ba'], ['ab', 'a'], ['a', 'b'], ['b', 'a']]
    """
    place = {token: number for number, token in enumerate(scores)}
    ways = [(-scores[token], place[token], place[left], place[right], left, right)
            for token in scores for cut in range(1, len(token))
            if (left := token[:cut]) in scores and (right := token[cut:]) in scores]
    return [[left, right] for *_, left, right in sorted(ways)]


def _bpe(metadata: Mapping[str, Any], tokens: Mapping[int, tuple[str, int]],
         scores: np.ndarray, unk_id: int | None) -> dict[str, Any]:
    prefixed = get(metadata, "tokenizer.ggml.add_space_prefix", bool, True)
    normal = {token: float(scores[id]) for id, (token, kind) in tokens.items()
              if kind == NORMAL}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE}, replace]} if prefixed else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None,
                  "unk_token": tokens[unk_id][0] if unk_id in tokens else None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {token: id for id, (token, _) in tokens.items()},
                  "merges": merges_from_scores(normal)}}


def _unigram(metadata: Mapping[str, Any], scores: np.ndarray,
             unk_id: int | None) -> dict[str, Any]:
    pieces = strings(metadata, "tokenizer.ggml.tokens")
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", np.int64)
    normalizers = []
    if "tokenizer.ggml.precompiled_charsmap" in metadata:
        data = _numbers(metadata, "tokenizer.ggml.precompiled_charsmap", np.int64)
        if ((data < -128) | (data > 255)).any():
            malformed("'tokenizer.ggml.precompiled_charsmap' is not made of bytes")
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
            data.astype(np.uint8).tobytes()).decode("ascii")})
    if get(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool, False):
        normalizers += [
            {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    if SPACE not in pieces:
        unsupported("its Unigram model has no piece for a space")
    prefixed = get(metadata, "tokenizer.ggml.add_space_prefix", bool, False)
    metaspace = {"type": "Metaspace", "replacement": SPACE,
                 "prepend_scheme": "always" if prefixed else "never",
                 # no piece reaches over a space: words can be cut one by one
                 "split": not any(SPACE in piece[1:] for piece in pieces)}
    return {"normalizer": ({"type": "Sequence", "normalizers": normalizers} if normalizers
                           else None),
            "pre_tokenizer": metaspace, "decoder": metaspace,
            "model": {"type": "Unigram", "unk_id": unk_id,
                      "byte_fallback": bool((kinds == BYTE).any()),
                      "vocab": [[piece, float(score)]
                                for piece, score in zip(pieces, scores, strict=True)]}}


def _numbers(metadata: Mapping[str, Any], key: str, dtype: type) -> np.ndarray:
    values = metadata.get(key)
    try:
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise ValueError
        return array.astype(dtype)
    except (TypeError, ValueError):
        malformed(f"{key!r} is missing, or is no list of numbers")
