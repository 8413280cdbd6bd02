"""How a SentencePiece vocabulary treats text, as a `tokenizer.json` says it.

SentencePiece has no words: a text's spaces are written as a visible sign, "▁", and the model
cuts the whole of it. Its two models are BPE over characters and Unigram. A character that no
token holds becomes the tokens of its UTF-8 bytes, <0xE4> and its kind (byte fallback), or the
unknown token.

Left out on purpose and refused by name: every step whose rules are not held here, and decoders
that do more than turn signs into spaces and byte tokens into characters.

Source: Kudo & Richardson 2018; the file format and behaviour of the `tokenizers` library.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from gearworks.vocabularies.document import (OTHER_MODEL, get, malformed, short, steps_of,
                                             type_name, unsupported)
from gearworks.vocabularies.normalizers import Normalizer, read_normalizer

SPACE = "▁"                                 # U+2581, which stands for a space
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")

_NOT_WHITE = regex.compile(r"\S+")
_AFTER_SPACES = re.compile(r"[^ ]* |[^ ]+")
_BEFORE_SIGNS = re.compile(f"{SPACE}[^{SPACE}]*|[^{SPACE}]+")


@dataclass(frozen=True)
class Metaspace:
    """Write spaces as "▁", put one in front, and cut before each.

    prepend: "always", "first" (where the piece begins the text), or "never"; a piece that
    begins with the sign gets no other.
    """

    prepend: str
    cut: bool

    def __call__(self, piece: str, first: bool) -> list[str]:
        piece = piece.replace(" ", SPACE)
        wanted = self.prepend == "always" or self.prepend == "first" and first
        if wanted and not piece.startswith(SPACE):
            piece = SPACE + piece
        return _BEFORE_SIGNS.findall(piece) if self.cut else [piece]


@dataclass(frozen=True)
class AfterSpaces:
    """Cut after each space."""

    def __call__(self, piece: str, first: bool) -> list[str]:
        return _AFTER_SPACES.findall(piece)


@dataclass(frozen=True)
class BetweenWhiteSpace:
    """Cut at white space, which is dropped."""

    def __call__(self, piece: str, first: bool) -> list[str]:
        return _NOT_WHITE.findall(piece)


PreTokenizer = Callable[[str, bool], list[str]]


@dataclass(frozen=True)
class SentencePieceRules:
    """What a SentencePiece vocabulary does, beside its tokens and merges.

    normalizers: functions of a text, in the order of use; pre_tokenizers: likewise, functions
    of a piece and of whether it begins the text, which give smaller pieces.
    scores: piece -> logarithm of its probability, for Unigram; None for BPE. byte_fallback: an
    unknown character becomes the tokens of its bytes, if they are all there. fuse_unk:
    neighbours that are unknown become one unknown token.
    joins_bytes: byte tokens that follow each other are read as the characters they spell.
    signs_last: a sign that byte tokens spell is read as a space, too.
    stripped: so many spaces are taken from a text's beginning when it is read. no_first_space:
    the first token's spaces are not read at all.
    """

    normalizers: tuple[Normalizer, ...] = ()
    pre_tokenizers: tuple[PreTokenizer, ...] = ()
    scores: Mapping[str, float] | None = None
    byte_fallback: bool = False
    fuse_unk: bool = False
    joins_bytes: bool = False
    signs_last: bool = False
    stripped: int = 0
    no_first_space: bool = False


def is_sentencepiece(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a `tokenizer.json` writes spaces as SentencePiece does, or bytes, or is Unigram.

    >>> is_sentencepiece({"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}})
    False
    """
    model = get(tokenizer, "model", dict)
    parts = [step for part, steps in (("decoder", "decoders"),
                                      ("pre_tokenizer", "pretokenizers"))
             for step in steps_of(get(tokenizer, part, dict, None), steps)]
    return (model.get("type") == "Unigram" or model.get("byte_fallback") is True
            or any(step.get("type") == "Metaspace" for step in parts))


def read_rules(tokenizer: Mapping[str, Any]) -> SentencePieceRules:
    """All of a `tokenizer.json` but its tokens. Raises FormatError, by name, for what is not
    supported."""
    model = get(tokenizer, "model", dict)
    kind = get(model, "type", str, "BPE")
    if kind not in ("BPE", "Unigram"):
        unsupported(f"its model is {short(kind)}, and BPE and Unigram are supported")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            unsupported(f"its BPE model has a {key} ({short(model[key])})")
    normalizers = tuple(map(read_normalizer, steps_of(
        get(tokenizer, "normalizer", dict, None), "normalizers")))
    pre_tokenizers = tuple(map(_read_pre_tokenizer, steps_of(
        get(tokenizer, "pre_tokenizer", dict, None), "pretokenizers")))
    return SentencePieceRules(
        normalizers, pre_tokenizers, byte_fallback=get(model, "byte_fallback", bool, False),
        fuse_unk=kind == "Unigram" or get(model, "fuse_unk", bool, False),
        **_read_decoder(get(tokenizer, "decoder", dict, None)))


def read_scores(pieces: Any) -> dict[str, float]:
    """The pieces of a Unigram model with their scores, in the order of their ids."""
    scores: dict[str, float] = {}
    for piece in pieces:
        if not (isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)
                and type(piece[1]) in (int, float) and piece[1] - piece[1] == 0):
            malformed(f"a piece is {short(piece)}, where a text and a score are needed")
        if piece[0] in scores:
            malformed(f"piece {piece[0][:40]!r} is listed twice")
        scores[piece[0]] = float(piece[1])
    if not scores:
        malformed("its Unigram model has no pieces")
    return scores


def _read_pre_tokenizer(step: Mapping[str, Any]) -> PreTokenizer:
    kind = step.get("type")
    if kind == "Metaspace":
        return Metaspace(_read_prepend(step), get(step, "split", bool, True))
    if kind == "WhitespaceSplit":
        return BetweenWhiteSpace()
    if (kind == "Split" and step.get("pattern") == {"String": " "}
        and step.get("behavior") == "MergedWithPrevious" and not step.get("invert")):
        return AfterSpaces()
    unsupported(f"its pre-tokenizer has the step {type_name(step)} ({short(step)}), which is "
                "not known here for SentencePiece")


def _read_prepend(step: Mapping[str, Any]) -> str:
    """When a Metaspace puts its sign in front; older files say it by `add_prefix_space`."""
    if get(step, "replacement", str) != SPACE:
        unsupported(f"it writes spaces as {short(step['replacement'])}, not as {SPACE!r}")
    added = get(step, "add_prefix_space", bool, True)
    scheme = get(step, "prepend_scheme", str, "always" if added else "never")
    if scheme not in ("always", "first", "never"):
        malformed(f"'prepend_scheme' is {short(scheme)}")
    return scheme


def _read_decoder(decoder: Mapping[str, Any] | None) -> dict[str, Any]:
    steps = steps_of(decoder, "decoders")
    kinds = [step.get("type") for step in steps]
    if kinds == ["Metaspace"]:
        return {"no_first_space": _read_prepend(steps[0]) != "never"}
    signs_last = kinds[:3] == ["ByteFallback", "Fuse", "Replace"]
    if signs_last:
        steps = [steps[2], *steps[:2], *steps[3:]]
        kinds = [step.get("type") for step in steps]
    reads_spaces = (steps and steps[0].get("type") == "Replace"
                    and steps[0].get("pattern") == {"String": SPACE}
                    and steps[0].get("content") == " ")
    if not reads_spaces or kinds[1:] not in (
            [], ["ByteFallback"], ["Fuse"], ["Fuse", "Strip"], ["ByteFallback", "Fuse"],
            ["ByteFallback", "Fuse", "Strip"]):
        unsupported(f"its decoder is {short(decoder)}, and Metaspace, and Replace with "
                    "ByteFallback, Fuse and Strip, are supported", OTHER_MODEL)
    stripped = 0
    if kinds[-1] == "Strip":
        if steps[-1].get("content") != " " or get(steps[-1], "stop", int, 0) != 0:
            unsupported(f"its decoder takes away more than a text's first spaces "
                        f"({short(steps[-1])})")
        stripped = get(steps[-1], "start", int)
        if stripped < 0:
            malformed(f"its decoder's 'start' is {stripped}")
    return {"joins_bytes": "ByteFallback" in kinds, "signs_last": signs_last,
            "stripped": stripped}
