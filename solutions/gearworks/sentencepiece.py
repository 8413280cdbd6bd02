"""SentencePiece: text to ids and back where spaces are visible and unknown characters bytes.

Two models cut a text whose spaces read "▁": BPE, by the same `encode_piece` as byte-level
vocabularies, with characters as its symbols; and Unigram, by `best_pieces`. What no token holds
becomes byte tokens, or the unknown token. How a vocabulary prepares a text before that, and
reads tokens after it, is in its `SentencePieceRules`.

Left out on purpose: sampling among cuts, and training.

Source: Kudo & Richardson 2018; ids and texts as those of the `tokenizers` library. Only of two
Unigram cuts whose scores are equal to the last bit may it take the other one: it reads some
decimal numbers of a file one bit off.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, groupby
from typing import Any

from gearworks.errors import ModelError
from gearworks.tokenizer import (CACHED_LENGTH, CACHED_WORDS, LONG_PIECE, Tokenizer, encode,
                                 encode_long_piece, encode_piece)
from gearworks.vocabularies.sentencepiece_rules import BYTE_TOKEN, SPACE
from gearworks.vocabularies.unigram import (LONG_TEXT, UNKNOWN_PENALTY, best_pieces,
                                            best_pieces_of_long)
from gearworks.vocabularies.vocabulary import read_vocabulary


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece vocabulary and its rules, ready for use; the interface is `Tokenizer`'s.

    `decode` reads a whole text, and drops the space that the vocabulary puts before every text.
    A text that goes on from another keeps its first space: `IncrementalDetokenizer` and
    `decode_bytes` read every token as it is. They differ from `decode` too where byte tokens
    spell no UTF-8: as in the `tokenizers` library, it reads U+FFFD for each byte of such a run.
    """

    def _prepare_model(self) -> None:
        vocabulary, rules = self.vocabulary, self.vocabulary.sentencepiece
        tokens = vocabulary.tokens
        self._rules = rules
        self._byte_tokens = {id for id, token in self._written.items() if len(token) == 6
                             and rules.joins_bytes and BYTE_TOKEN.fullmatch(token)}
        self._byte_ids = [tokens.get(f"<0x{byte:02X}>") for byte in range(256)]
        held = {self._bytes_of(token) for token in tokens if len(token) in (1, 6)}
        self.missing_bytes = bytes(byte for byte in range(256) if bytes([byte]) not in held)

        self._words = None
        if rules.scores is not None:
            # by their first three characters, how long pieces are
            self._lengths: dict[str, list[int]] = {}
            for piece in sorted((each for each in rules.scores if len(each) > 2), key=len):
                known = self._lengths.setdefault(piece[:3], [])
                if known[-1:] != [len(piece)]:
                    known.append(len(piece))
            self._worst = min(rules.scores, key=lambda piece: (rules.scores[piece], len(piece)))
        elif SPACE in tokens and not vocabulary.ignore_merges:
            merged = {merged for _, merged in vocabulary.merges.values()}
            self._words = _words(map(self._written.__getitem__, merged))
        self._encode_word = lru_cache(maxsize=CACHED_WORDS)(self._encode_piece)

    def _bytes_of(self, token: str) -> bytes:
        byte = (BYTE_TOKEN.fullmatch(token) if len(token) == 6 and self._rules.joins_bytes
                else None)
        return bytes.fromhex(byte[1]) if byte else token.replace(SPACE, " ").encode("utf-8")

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes, UTF-8 or not, such that `decode_bytes` gives them back.

        Special tokens are not looked for, nothing is normalized, and no space is put in front.
        Raises ModelError where the vocabulary cannot spell them.
        """
        # What reads "▁" in a text has no token: those that are written so stand for spaces
        sign = SPACE.encode("utf-8")
        ids: list[int] = []
        for number, part in enumerate(data.split(sign)):
            if number:
                ids += [id for byte in sign if (id := self._byte_ids[byte]) is not None]
            if part:
                # a byte that is not UTF-8 travels as half a surrogate pair
                text = part.decode("utf-8", errors="surrogateescape").replace(" ", SPACE)
                ids += self._encode_pieces([text])
        if self.decode_bytes(ids) != data:
            raise ModelError("cannot encode these bytes",
                             "the vocabulary has no tokens for some of them",
                             "leave them out, or use a model whose vocabulary has all bytes")
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids, without the space that the vocabulary puts before a text.

        Byte tokens that are not UTF-8 read U+FFFD each, with those beside them; an id without a
        token reads nothing.
        """
        known = self._readable_bytes if skip_special else self._token_bytes
        texts: list[str] = []
        run = b""                                   # of byte tokens, until another one comes
        for id in chain((id for id in ids if id in known), [None]):
            if id in self._byte_tokens:
                run += known[id]
                continue
            if run:
                spelled = _spelled(run)
                texts.append(spelled.replace(SPACE, " ") if self._rules.signs_last else spelled)
                run = b""
            if id is not None:
                texts.append(known[id].decode("utf-8"))
                if self._rules.no_first_space and len(texts) == 1:
                    texts[0] = self._written[id].replace(SPACE, "")
        text = "".join(texts)
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self._rules.stripped):]

    def _normalize(self, text: str) -> str:
        for step in self.vocabulary.sentencepiece.normalizers:
            text = step(text)
        return text

    def _encode_text(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        # A text among the ids is what has none yet
        parts = encode(text, self._added, lambda part: [part], parse_special)
        for place, part in enumerate(parts):
            if not isinstance(part, str):
                ids.append(part)
                continue
            inner = encode(self._normalize(part), self._added_normalized,
                           lambda part: [part], parse_special)
            for inner_place, each in enumerate(inner):
                ids += (self._encode_part(each, first=place == inner_place == 0)
                        if isinstance(each, str) else [each])
        return ids

    def _encode_part(self, text: str, first: bool) -> list[int]:
        pieces = [text]
        for step in self._rules.pre_tokenizers:
            pieces = [smaller for place, piece in enumerate(pieces)
                      for smaller in step(piece, first and place == 0)]
        return self._encode_pieces(pieces)

    def _encode_pieces(self, pieces: Iterable[str]) -> list[int]:
        if self._words is not None:
            pieces = chain.from_iterable(map(self._words.split, pieces))
        ids: list[int] = []
        for piece in pieces:
            ids += (self._encode_word(piece) if len(piece) <= CACHED_LENGTH
                    else self._encode_piece(piece))
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        vocabulary = self.vocabulary
        if self._rules.scores is not None:
            return self._encode_unigram(piece)
        if vocabulary.ignore_merges and piece in vocabulary.tokens:
            return [vocabulary.tokens[piece]]
        symbols = self._symbols(piece)
        merge = encode_piece if len(symbols) < LONG_PIECE else encode_long_piece
        return merge(symbols, vocabulary.merges)

    def _symbols(self, piece: str) -> list[int]:
        """Ids of the characters of a piece, before any merge."""
        tokens, unk_id = self.vocabulary.tokens, self.vocabulary.unk_id
        known = [*map(tokens.get, piece)]
        if None not in known:
            return known
        symbols: list[int] = []
        unknown = 0                       # characters that wait to become unknown tokens
        for character in piece:
            id = tokens.get(character)
            if id is None and (ids := self._ids_of_bytes(character)) is not None:
                symbols += ids            # which overtake those that wait, as in `tokenizers`
            elif id is None:
                unknown += unk_id is not None
            else:
                symbols += [unk_id] * (min(unknown, 1) if self._rules.fuse_unk else unknown)
                symbols.append(id)
                unknown = 0
        return symbols + [unk_id] * (min(unknown, 1) if self._rules.fuse_unk else unknown)

    def _ids_of_bytes(self, text: str) -> list[int] | None:
        if not self._rules.byte_fallback:
            return None
        ids = [self._byte_ids[byte] for byte in text.encode("utf-8", "surrogateescape")]
        return None if None in ids else ids

    def _encode_unigram(self, piece: str) -> list[int]:
        scores, lengths = self._rules.scores, self._lengths
        lowest = scores[self._worst]
        if len(piece) >= LONG_TEXT:
            parts = best_pieces_of_long(piece, scores, lengths, lowest - UNKNOWN_PENALTY)
        else:
            # `best_pieces` looks at all scores that it gets: those of pieces that occur here,
            # and the lowest of all, from which it knows what an unknown character costs
            here = {self._worst: lowest}
            for start in range(len(piece)):
                for length in (1, 2, *lengths.get(piece[start:start + 3], ())):
                    part = piece[start:start + length]
                    if part in scores:
                        here[part] = scores[part]
            parts = best_pieces(piece, here) if piece else []
        ids = [*map(self.vocabulary.tokens.get, parts)]
        if None not in ids and self.vocabulary.unk_id not in ids:
            return ids
        ids = []
        # the unknown token's own text is unknown, too, and one with what is unknown beside it
        for unknown, run in groupby(parts, self._is_unknown):
            for part in ["".join(run)] if unknown else run:
                id = self.vocabulary.tokens.get(part)
                if id is None:
                    ids += self._ids_of_bytes(part) or [self.vocabulary.unk_id]
                else:
                    ids.append(id)
        return ids

    def _is_unknown(self, part: str) -> bool:
        unk_id = self.vocabulary.unk_id
        return self.vocabulary.tokens.get(part, unk_id) == unk_id


class AnyTokenizer(Tokenizer):
    """Reads a vocabulary of either kind: `from_file`, `from_json` and `from_gguf` give a
    `SentencePieceTokenizer` where it is one, else a `Tokenizer`."""

    @classmethod
    def from_json(cls, tokenizer: Mapping[str, Any],
                  config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Build from `tokenizer.json` and `tokenizer_config.json` with `read_vocabulary`."""
        vocabulary = read_vocabulary(tokenizer, config)
        kind = Tokenizer if vocabulary.sentencepiece is None else SentencePieceTokenizer
        return kind(vocabulary)


def _words(merged: Iterable[str]) -> re.Pattern:
    """A pattern that matches between words, where no merge ever joins what stands there.

    merged: all tokens that merges make. A word begins with its signs for spaces, so only a
    token that holds one after another character can cross the border of words.

    >>> _words(["▁the", "▁▁", "in▁"]).split("▁▁the▁bin▁of▁the▁sin")
    ['▁▁the', '▁bin▁of', '▁the', '▁sin']
    """
    before = {found[1] for token in merged if SPACE in token[1:]
              for found in re.finditer(f"([^{SPACE}]){SPACE}", token, re.DOTALL)}
    return re.compile(f"(?<=[^{SPACE}{''.join(map(re.escape, sorted(before)))}])(?={SPACE})",
                      re.DOTALL)


def _spelled(run: bytes) -> str:
    """What byte tokens in a row read."""
    try:
        return run.decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(run)
