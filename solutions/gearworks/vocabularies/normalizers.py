"""What a vocabulary does to a text before it looks for tokens, step by step.

A step is a function of a text. Steps that say the same are equal. Left out on purpose: how a
step moves the places of characters, which only offsets need.

Source: `normalizers` of the `tokenizers` library.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gearworks.vocabularies.charsmap import CharsMap
from gearworks.vocabularies.document import get, malformed, short, type_name, unsupported
from gearworks.vocabularies.unicode_tables import WHITE_SPACE, normalize

Normalizer = Callable[[str], str]

# Patterns that vocabularies replace, as `re` has them
_KNOWN_PATTERNS = {" {2,}": " {2,}", r"\A +| +\z": r"\A +| +\Z", r"\A▁": r"\A▁",
                   r"\p{Zs}": "[ \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]"}
# One of some characters, each written as it is or by its number: any regular expressions agree
_LIST = re.compile(r"\[(?:\\u[0-9A-Fa-f]{4}|[^\\\[\]^&-])+\]\+?")


@dataclass(frozen=True)
class Form:
    """Unicode's normal form: "NFC", "NFD", "NFKC" or "NFKD"."""

    form: str

    def __call__(self, text: str) -> str:
        return normalize(text, self.form)


@dataclass(frozen=True)
class Prepend:
    """Put this before a text that is not empty."""

    before: str

    def __call__(self, text: str) -> str:
        return self.before + text if text else text


@dataclass(frozen=True)
class Replace:
    """Put one text in the place of another, everywhere."""

    old: str
    new: str

    def __call__(self, text: str) -> str:
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class ReplacePattern:
    """Put a text in the place of every match of a pattern for `re`."""

    pattern: str
    new: str

    def __call__(self, text: str) -> str:
        return re.sub(self.pattern, lambda _: self.new, text)


@dataclass(frozen=True)
class Strip:
    """Take white space away at the beginning, or at the end, or both."""

    left: bool
    right: bool

    def __call__(self, text: str) -> str:
        start, end = 0, len(text)
        while self.left and start < end and WHITE_SPACE.match(text, start):
            start += 1
        while self.right and end > start and WHITE_SPACE.match(text, end - 1):
            end -= 1
        return text[start:end]


def read_normalizer(step: Mapping[str, Any]) -> Normalizer:
    """One step of `tokenizer.json`. Raises FormatError, by name, for one that is not known.

    >>> read_normalizer({"type": "Replace", "pattern": {"String": " "}, "content": "_"})("a b")
    'a_b'
    """
    kind = step.get("type")
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return Form(kind)
    if kind == "Prepend":
        return Prepend(get(step, "prepend", str))
    if kind == "Replace":
        pattern, new = get(step, "pattern", dict), get(step, "content", str)
        if isinstance(pattern.get("String"), str) and pattern["String"]:
            return Replace(pattern["String"], new)
        regex = pattern.get("Regex")
        if regex in [*_KNOWN_PATTERNS]:
            return ReplacePattern(_KNOWN_PATTERNS[regex], new)
        if isinstance(regex, str) and _LIST.fullmatch(regex):
            return ReplacePattern(regex, new)
        unsupported(f"its normalizer replaces a pattern that is not known here: "
                    f"{short(pattern)}")
    if kind == "Strip":
        return Strip(get(step, "strip_left", bool), get(step, "strip_right", bool))
    if kind == "Precompiled":
        return read_charsmap(get(step, "precompiled_charsmap", str))
    unsupported(f"its normalizer is {type_name(step)}, and NFC, NFD, NFKC, NFKD, Prepend, "
                "Replace, Strip and Precompiled are supported")


def read_charsmap(text: str) -> CharsMap:
    """The table of a `Precompiled` step, which is written in base 64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        malformed("its table of characters (precompiled_charsmap) is no base 64")
    return CharsMap(data)
