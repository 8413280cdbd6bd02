"""SentencePiece's table of what a text is spelled with: "ﬁ" reads "fi", a tab reads " ".

It is part of a vocabulary's files, as a double-array trie over UTF-8: the value of a key is
the place of its replacement among texts that end with a zero byte. Left out on purpose: making
such a table.

Source: SentencePiece (normalizer.cc); Yata et al. 2007 and darts-clone for the trie; which
characters are replaced together as in the `tokenizers` library, which asks for whole graphemes
of up to five bytes, then for single characters.
"""

from functools import lru_cache

import numpy as np
import regex

from gearworks.vocabularies.document import malformed

CACHED_GRAPHEMES = 2**15


class CharsMap:
    """A function of a text: the text as the table spells it.

    data: the table as SentencePiece writes it. Raises FormatError for one that is damaged.
    """

    def __init__(self, data: bytes):
        self.data = data
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or 4 + size > len(data) or not size:
            malformed("its table of characters (precompiled_charsmap) is cut off")
        self._units = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._texts = data[4 + size:]
        self._spelled = lru_cache(maxsize=CACHED_GRAPHEMES)(self._spell)
        plain = all(self._replacement(chr(code)) is None for code in range(0x20, 0x7F))
        # runs of ASCII, which no table in use replaces, are passed over at once
        self._parts = regex.compile(r"[ -~]+(?=[ -~])|\X" if plain else r"\X")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharsMap) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __call__(self, text: str) -> str:
        return self._parts.sub(self._part, text)

    def _part(self, match: regex.Match) -> str:
        part = match[0]
        if part[0] >= " " and part.isascii() and len(part) > 1:
            return part
        return self._spelled(part)

    def _spell(self, grapheme: str) -> str:
        if len(grapheme.encode("utf-8")) < 6:
            whole = self._replacement(grapheme)
            if whole is not None:
                return whole
        parts = ((character, self._replacement(character)) for character in grapheme)
        return "".join(character if other is None else other for character, other in parts)

    def _replacement(self, key: str) -> str | None:
        """What stands for the shortest beginning of the key that the table has, or None."""
        place, units = 0, self._units
        try:
            place ^= _offset(units[place])
            for byte in key.encode("utf-8"):
                if byte == 0:
                    return None
                place ^= byte
                unit = units[place]
                if unit & 0x800000FF != byte:
                    return None
                place ^= _offset(unit)
                if unit >> 8 & 1:
                    start = units[place] & 0x7FFFFFFF
                    end = self._texts.find(b"\0", start)
                    return self._texts[start:end if end >= 0 else None].decode("utf-8")
        except (IndexError, UnicodeDecodeError):
            malformed("its table of characters (precompiled_charsmap) is damaged")
        return None


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
