"""Byte-level BPE: text to token ids and back, with nothing lost on the way.

A text passes through five stages, each a function here:
    added tokens      `encode` finds <|im_start|> and its kind, which no other rule may touch
    normalization     `normalize` (Qwen: NFC; SmolLM2 and Llama 3: none)
    pre-tokenization  `pre_tokenize` cuts the rest into pieces, roughly words; no token crosses
                      their borders
    bytes             UTF-8; the vocabulary writes every byte as one printable character,
                      `bytes_to_unicode`
    merging           `encode_piece` joins neighbouring symbols, lowest rank first
Which pairs merge, and in which order, was learned from texts, once and for all: `train_bpe`.
The way back is shorter: `decode` joins the tokens' bytes, and `IncrementalDetokenizer` does so
while they arrive.

Words: a symbol is an id on its way to becoming a token, a pair two neighbouring symbols, the
rank of a merge its place in the list that training made. Left out on purpose: offsets, batches,
truncation, padding, and a trainer for more than a few hundred kilobytes of text.

Source: Sennrich et al. 2016 (BPE), Radford et al. 2019 (bytes); behaviour as in the
`tokenizers` library.
"""

import re
from codecs import charmap_build, charmap_encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import count, pairwise, repeat
from pathlib import Path
from typing import Any

import regex

from gearworks.errors import FormatError, ModelError
from gearworks.formats.files import read_json
from gearworks.vocabularies.alternatives import longest_of
from gearworks.vocabularies.patterns import OTHER_SPLITTERS, covering
from gearworks.vocabularies.unicode_tables import (DIGIT, LETTER, NUMBER, WHITE_SPACE,
                                                   WORD_CHARACTER, normalize)
from gearworks.vocabularies.vocabulary import (SPECIAL_ROLES, AddedToken, Vocabulary,
                                               read_vocabulary, tokenizer_config_from_gguf,
                                               tokenizer_json_from_gguf)

# symbols from which the heap of `encode_long_piece` beats scanning again and again
LONG_PIECE = 16
# pieces whose ids are remembered; a bound, since new words never end (10 MB, mostly)
CACHED_WORDS = 2**15
CACHED_LENGTH = 32          # characters of a piece that is worth remembering


def bytes_to_unicode() -> dict[int, str]:
    """How byte-level vocabularies write bytes: byte (0 to 255) -> one printable character.

    Bytes that are printable in Latin-1 ("!" to "~", "¡" to "¬", "®" to "ÿ") stand for
    themselves. The others (space, controls, U+007F to U+00A0, U+00AD), in order, are the
    characters from U+0100 on: so a space reads "Ġ".
    Source: GPT-2.

    >>> characters = bytes_to_unicode()
    >>> "".join(characters[byte] for byte in "café au lait".encode("utf-8"))
    'cafÃ©ĠauĠlait'
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1),
                 *range(ord("®"), ord("ÿ") + 1)}
    stand_in = count(256)
    return {byte: chr(byte if byte in printable else next(stand_in)) for byte in range(256)}


def gpt2_pattern(letter: str, number: str) -> str:
    """GPT-2's rule for cutting text into pieces, as a pattern for `regex`.
    Its matches cover any text.

    letter, number: what matches one letter, one number: r"\\p{L}", or a class in square
    brackets. Each may stand alone, be repeated, or stand between [ and ]. White space is what
    \\s matches; a space is U+0020.
    At each place the first of these that fits is taken, and it takes as much as it can:

    1. a contraction in lower case: 's 't 're 've 'm 'll 'd
    2. letters, with one space before them if it stands there
    3. numbers, likewise
    4. characters that are neither letters, numbers nor white space, likewise
    5. white space without its last character, if something that is no white space follows
    6. white space

    Source: Radford et al. 2019.

    >>> regex.findall(gpt2_pattern(r"\\p{L}", r"\\p{N}"), "I'll take  2000!")
    ['I', "'ll", ' take', ' ', ' 2000', '!']
    """
    other = rf"[^\s{letter}{number}]"
    return rf"'(?:[stmd]|re|ve|ll)| ?{letter}+| ?{number}+| ?{other}+|\s+(?!\S)|\s+"


def splitter(name: str) -> str:
    """A pre-tokenizer's rule as a pattern for `regex`; its matches, the pieces, cover any text.

    "gpt2": as `gpt2_pattern`.
    "llama3": at each place the first that fits. 1. a contraction in any case; 2. letters, with
        one character before them that is no letter, no number, no \\r and no \\n, if it stands
        there; 3. one to three numbers; 4. characters that are neither letters, numbers nor
        white space, with one space before them if it stands there, and the \\r and \\n that
        follow; 5. white space up to the last \\r or \\n in it; 6. white space as in
        `gpt2_pattern`.
    "qwen2": as "llama3", but each number is a piece.
    "digits": each number is a piece; so is all that lies between two of them.

    Other vocabularies' rules have the names in `vocabularies.patterns`.
    Raises KeyError for any other name. Source: the patterns in these models' tokenizer.json.

    >>> regex.findall(splitter("llama3"), "I'LL take  2000!")
    ['I', "'LL", ' take', ' ', ' ', '200', '0', '!']
    """
    if name in OTHER_SPLITTERS:
        return covering(name)
    # "ſ" is an "s" where case does not count.
    contraction = "'(?:[sSſtTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

    def llama(numbers: str) -> str:
        return (rf"{contraction}|[^\r\n{LETTER}{NUMBER}]?{LETTER}+|{numbers}"
                rf"| ?[^\s{LETTER}{NUMBER}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

    patterns = {
        "digits": rf"{DIGIT}|[^{DIGIT}]+",
        "gpt2": gpt2_pattern(LETTER, NUMBER),
        "llama3": llama(f"{NUMBER}{{1,3}}"),
        "qwen2": llama(NUMBER),
    }
    return "(?V1)" + patterns[name]          # version 1 of `regex` knows classes within classes


def pre_tokenize(text: str, splitters: Sequence[str]) -> list[str]:
    """Cut a text into the pieces within which tokens may form; joined, they are the text again.

    splitters: patterns for `regex`, such as `splitter` gives, whose matches cover any text. The
    first one cuts the text, each further one cuts the pieces that the one before it left.
    Without splitters the text is one piece; with any, an empty text has none.

    >>> pre_tokenize("in 2024", [splitter("digits"), splitter("gpt2")])
    ['in', ' ', '2', '0', '2', '4']
    """
    pieces = [text]
    for pattern in splitters:
        matches = regex.compile(pattern).findall
        pieces = [match for piece in pieces for match in matches(piece)]
    return pieces


def count_pairs(words: Iterable[tuple[Sequence[int], int]]) -> Counter[tuple[int, int]]:
    """How often pairs of neighbouring symbols occur in all words: (left id, right id) -> count.

    words: the symbols of each different piece, and how often the piece occurs. Pairs may
    overlap: three equal symbols hold their pair twice. A pair that does not occur has no entry.

    >>> sorted(count_pairs([([1, 1, 1], 2), ([7, 1, 1], 10)]).items())
    [((1, 1), 14), ((7, 1), 10)]
    """
    counts: Counter[tuple[int, int]] = Counter()
    for symbols, occurrences in words:
        for pair in pairwise(symbols):
            counts[pair] += occurrences
    return counts


def merge_pair(symbols: Sequence[int], pair: tuple[int, int], merged: int) -> list[int]:
    """A word's symbols with every occurrence of a pair replaced by one symbol, as a new list.

    Occurrences are taken from the left. A symbol takes part in one of them at most, and the new
    symbol in none.

    >>> merge_pair([1, 1, 1, 5, 1, 1], (1, 1), 9)
    [9, 1, 5, 9]
    """
    after: list[int] = []
    place = 0
    while place < len(symbols):
        found = tuple(symbols[place:place + 2]) == pair
        after.append(merged if found else symbols[place])
        place += 2 if found else 1
    return after


def train_bpe(texts: Iterable[str], vocab_size: int,
              splitters: Sequence[str] = ("gpt2",)) -> Vocabulary:
    """Learn a byte-level vocabulary from texts: which symbols to join, in which order.

    At first every byte is a symbol. Their ids are 0 to 255, in the order of the characters by
    which `bytes_to_unicode` writes them: "!" is 0, and the space, which is written "Ġ", is 220.
    Each merge joins the pair that occurs most often in the pieces of all texts, counted as in
    `count_pairs`, and its result gets the next id. Of pairs that occur equally often the one
    with the lower left id is merged first, and among those the one with the lower right id.
    Training ends when there are `vocab_size` tokens, or when no pair is left.

    splitters: names for `splitter`; the vocabulary that is returned holds them, and no added
    tokens.
    Raises ModelError when `vocab_size` is less than 256.
    Source: Sennrich et al. 2016; the order of ids and ties is that of the `tokenizers` library.

    >>> vocabulary = train_bpe(["hug hug hugs"], 258)
    >>> vocabulary.merges, [*vocabulary.tokens][-2:]
    ({(71, 84): (0, 256), (256, 70): (1, 257)}, ['hu', 'hug'])
    """
    characters = bytes_to_unicode()
    if vocab_size < len(characters):
        raise ModelError("cannot train this vocabulary",
                         f"{vocab_size} tokens do not hold the 256 bytes",
                         "ask for a larger vocabulary")
    written = sorted(characters.values())                   # the token of each id
    ids = {byte: written.index(character) for byte, character in characters.items()}
    patterns = [splitter(name) for name in splitters]
    pieces = Counter(piece for text in texts for piece in pre_tokenize(text, patterns))
    words = [([ids[byte] for byte in piece.encode("utf-8")], occurrences)
             for piece, occurrences in pieces.items()]

    merges: dict[tuple[int, int], tuple[int, int]] = {}
    while len(written) < vocab_size and (counts := count_pairs(words)):
        pair = min(counts, key=lambda pair: (-counts[pair], pair))
        merged = len(written)
        merges[pair] = len(merges), merged
        written.append(written[pair[0]] + written[pair[1]])
        words = [(merge_pair(symbols, pair, merged), occurrences)
                 for symbols, occurrences in words]
    tokens = {token: id for id, token in enumerate(written)}
    return Vocabulary(tokens, merges, splitters=tuple(splitters))


def encode_piece(symbols: Sequence[int],
                 merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge the symbols of one piece until no neighbours have a merge; returns token ids.

    merges: (left id, right id) -> (rank, merged id). Of all merges that are possible at a
    moment the one with the lowest rank is made, at the leftmost of its places. The cost may
    grow with the square of the length.
    Source: Sennrich et al. 2016.

    >>> encode_piece([0, 1, 2], {(0, 1): (7, 3), (1, 2): (5, 4)})
    [0, 4]
    """
    symbols = list(symbols)
    no_merge = (float("inf"), -1)
    while len(symbols) > 1:
        candidates = list(map(merges.get, pairwise(symbols), repeat(no_merge)))
        best = min(candidates)
        if best is no_merge:
            break
        place = candidates.index(best)
        symbols[place:place + 2] = [best[1]]
    return symbols


def encode_long_piece(symbols: Sequence[int],
                      merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """As `encode_piece`, at a cost of n log n for n symbols: a million of them take seconds.

    >>> encode_long_piece([0, 1, 2], {(0, 1): (7, 3), (1, 2): (5, 4)})
    [0, 4]
    """
    # A linked list in two arrays: a merge leaves the new symbol in the left place and takes the
    # right place out. Place n is a sentinel, which is also what index -1 finds to the left of
    # place 0.
    gone = -1
    n = len(symbols)
    symbols = [*symbols, gone]
    left, right = [*range(-1, n)], [*range(1, n + 1), n]

    # The number rank * n + place orders candidates by rank, then from left to right.
    heap = [merge[0] * n + place
            for place, merge in enumerate(map(merges.get, pairwise(symbols))) if merge]
    heapify(heap)
    while heap:
        rank, place = divmod(heappop(heap), n)
        merge = merges.get((symbols[place], symbols[right[place]]))
        if merge is None or merge[0] != rank:         # the pair that was here has changed since
            continue
        partner = right[place]
        symbols[place], symbols[partner] = merge[1], gone
        right[place] = right[partner]
        left[right[partner]] = place
        for start in (left[place], place):
            merge = merges.get((symbols[start], symbols[right[start]]))
            if merge is not None:
                heappush(heap, merge[0] * n + start)
    return [symbol for symbol in symbols if symbol != gone]


@lru_cache(maxsize=64)
def any_of(contents: tuple[str, ...]) -> re.Pattern:
    """A pattern that finds any of these texts; where several begin at one place, the longest.

    >>> any_of(("<end>", "<end><end>", "<")).findall("a<b<end><end>")
    ['<', '<end><end>']
    """
    return re.compile(longest_of(contents))


def encode(text: str, added_tokens: Collection[AddedToken],
           encode_ordinary: Callable[[str], list[int]],
           parse_special: bool = True) -> list[int]:
    """Encode a text with added tokens: they become their ids, `encode_ordinary` does the rest.

    Where several added tokens fit, the one that begins first wins, then the longest. A match
    does not count, and is ordinary text from end to end, if the token is `single_word` and a
    word character (`WORD_CHARACTER`) touches it, or if it is special and `parse_special` is
    false. A token with `lstrip` or `rstrip` swallows the white space (`WHITE_SPACE`) on that
    side. One with `lstrip` does not count either where the token before has swallowed all of
    it: such a token may be white space itself.
    `encode_ordinary` is never called for an empty text.

    parse_special: false for what a user typed, so that nobody can forge the end of a message.

    >>> encode("hi<end>hi", [AddedToken("<end>", 7, special=True)], lambda text: [len(text)])
    [2, 7, 2]
    >>> encode("hi<end>hi", [AddedToken("<end>", 7, special=True)], lambda text: [len(text)],
    ...        parse_special=False)
    [9]
    """
    if not added_tokens:
        return encode_ordinary(text) if text else []
    token_of = {token.content: token for token in added_tokens}
    ids = []
    rest = 0                                         # where the text begins that has no ids yet
    for match in any_of(tuple(token_of)).finditer(text):
        token = token_of[match[0]]
        start, end = match.span()
        if token.special and not parse_special:
            continue
        if token.single_word and (WORD_CHARACTER.match(text[start - 1:start])
                                  or WORD_CHARACTER.match(text, end)):
            continue
        while token.lstrip and start > rest and WHITE_SPACE.match(text, start - 1):
            start -= 1
        while token.rstrip and WHITE_SPACE.match(text, end):
            end += 1
        if token.lstrip and end <= rest:                    # the token before took all of it
            continue
        if start > rest:
            ids += encode_ordinary(text[rest:start])
        ids.append(token.id)
        rest = end
    if rest < len(text):
        ids += encode_ordinary(text[rest:])
    return ids


def decode(ids: Iterable[int], token_bytes: Mapping[int, bytes]) -> str:
    """The text of token ids.

    token_bytes: id -> the bytes that the token stands for. A character may be spread over
    several tokens. Bytes that are not UTF-8 read U+FFFD; ids that are not in `token_bytes` read
    nothing.

    >>> decode([0, 1, 2], {0: b"caf", 1: b"\\xc3", 2: b"\\xa9"})
    'café'
    """
    return b"".join(token_bytes.get(id, b"") for id in ids).decode("utf-8", errors="replace")


class IncrementalDetokenizer:
    """Turns ids into text one by one, for a reader who watches; joined, it is `decode` of all.

    tokenizer: gives the bytes of an id by `tokenizer.decode_bytes([id], skip_special)`.
    skip_special: special tokens read nothing, as in `Tokenizer.decode`.

    >>> tokenizer = Tokenizer(Vocabulary({"caf": 0, "Ã": 1, "©": 2}, merges={}))
    >>> detokenizer = IncrementalDetokenizer(tokenizer)
    >>> [detokenizer.push(id) for id in (0, 1, 2)], detokenizer.flush()
    (['caf', '', 'é'], '')
    """

    def __init__(self, tokenizer: "Tokenizer", skip_special: bool = False):
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pending = b""                  # the beginning of a character, at most three bytes

    def push(self, id: int) -> str:
        """Take one id; returns the text that is now certain: whole characters, or none."""
        data = self._pending + self._tokenizer.decode_bytes([id], self._skip_special)
        # A byte from 0xC0 on begins a character of two, three or four bytes and is never inside
        # one, so text may be cut before it. All that matters is whether the last such byte has
        # yet what it asks for; bytes below 0x80 are characters by themselves, and nothing
        # before them can still be finished.
        cut = len(data)
        for length, byte in enumerate(reversed(data[-3:]), start=1):
            if byte < 0x80:
                break
            if byte >= 0xC0:
                wanted = 2 + (byte >= 0xE0) + (byte >= 0xF0)
                cut -= length if length < wanted else 0
                break
        self._pending = data[cut:]
        return data[:cut].decode("utf-8", errors="replace")

    def flush(self) -> str:
        """The end of the text: U+FFFD if the last character never became whole, or nothing."""
        rest, self._pending = self._pending, b""
        return rest.decode("utf-8", errors="replace")


class Tokenizer:
    """A vocabulary and its rules, ready for use.
    Ids are Python ints; any number of threads may use one tokenizer.

    vocabulary: what it was made from; vocab_size: the largest id plus one (an embedding may
    have more rows, never fewer); bos_id, eos_id, unk_id, pad_id: the tokens with these roles,
    or None.
    missing_bytes: bytes that no token stands for, ascending. SmolLM2 misses 21: six control
    characters, the first byte of U+40000 to U+BFFFF (no characters yet), and 13 bytes that
    UTF-8 never uses.

    >>> Tokenizer(Vocabulary({"a": 0, "b": 1, "ab": 2, "Ġ": 3},
    ...                      {(0, 1): (0, 2)})).encode("ab ba")
    [2, 3, 1, 0]
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        added = vocabulary.added_tokens
        self._written = {id: token for token, id in vocabulary.tokens.items()}
        self._written |= {token.id: self._normalize(token.content) if token.normalized
                          else token.content for token in added}
        self._prepare_model()
        self._token_bytes = {id: self._bytes_of(token) for id, token in self._written.items()}
        special = {token.id for token in added if token.special}
        self._readable_bytes = {id: data for id, data in self._token_bytes.items()
                                if id not in special}

        self._added = [token for token in added if not token.normalized]
        self._added_normalized = [replace(token, content=self._normalize(token.content))
                                  for token in added if token.normalized]
        self.vocab_size = 1 + max(self._token_bytes, default=-1)
        self.bos_id, self.eos_id, self.unk_id, self.pad_id = map(vocabulary.specials.get,
                                                                 SPECIAL_ROLES)

    def _prepare_model(self) -> None:
        """What is particular to byte-level vocabularies."""
        vocabulary = self.vocabulary
        written = bytes_to_unicode()
        self._byte_characters = charmap_build("".join(written[byte] for byte in range(256)))
        self._whole_pieces = {}
        if vocabulary.ignore_merges:
            self._whole_pieces = {data: id for token, id in vocabulary.tokens.items()
                                  if (data := self._written_bytes(token)) is not None}
        self._splitters = [splitter(name) for name in vocabulary.splitters]
        self._byte_ids = [vocabulary.tokens.get(written[byte], vocabulary.unk_id)
                          for byte in range(256)]
        self.missing_bytes = bytes(byte for byte in range(256)
                                   if written[byte] not in vocabulary.tokens)
        self._dropped_bytes = self.missing_bytes if vocabulary.unk_id is None else b""
        self._encode_word = lru_cache(maxsize=CACHED_WORDS)(self._encode_piece)

    def _written_bytes(self, token: str) -> bytes | None:
        """What a token stands for that is written in byte characters."""
        try:
            return charmap_encode(token, "strict", self._byte_characters)[0]
        except UnicodeEncodeError:
            return None

    def _bytes_of(self, token: str) -> bytes:
        # A token that is not written in byte characters stands for its own UTF-8.
        data = self._written_bytes(token)
        return token.encode("utf-8") if data is None else data

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Read a `tokenizer.json`, and the `tokenizer_config.json` beside it if there is one.

        Raises NotAvailableError, or FormatError with the file's name, the reason and a hint
        (see `read_vocabulary`).
        """
        path = Path(path)
        config_path = path.with_name("tokenizer_config.json")
        config = read_json(config_path) if config_path.exists() else None
        try:
            return cls.from_json(read_json(path), config)
        except FormatError as error:
            raise FormatError(f"cannot use {path}", error.why, error.hint) from None

    @classmethod
    def from_json(cls, tokenizer: Mapping[str, Any],
                  config: Mapping[str, Any] | None = None) -> "Tokenizer":
        """Build from `tokenizer.json` and `tokenizer_config.json` with `read_vocabulary`.

        The vocabulary must be byte-level; `sentencepiece.AnyTokenizer` takes either kind.
        """
        vocabulary = read_vocabulary(tokenizer, config)
        if vocabulary.sentencepiece is not None:
            raise FormatError("cannot use this vocabulary", "it is SentencePiece's",
                              "read it with gearworks.sentencepiece.AnyTokenizer")
        return cls(vocabulary)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build from the metadata of a GGUF file; errors as `tokenizer_json_from_gguf`."""
        return cls.from_json(tokenizer_json_from_gguf(metadata),
                             tokenizer_config_from_gguf(metadata))

    def encode(self, text: str, parse_special: bool = True,
               add_special_tokens: bool = False) -> list[int]:
        """The ids of a text, equal to those of Hugging Face's `tokenizers` for every text.

        parse_special: false where the writer is not trusted; a special token's text is then
        ordinary text.
        add_special_tokens: put BOS, and what else the vocabulary asks for, around the text
        (Llama 3 wants BOS, SmolLM2 nothing). Not for the output of a chat template, which holds
        its BOS already.
        Bytes in `missing_bytes` become the unknown token or, where there is none, nothing.
        Raises FormatError for half a surrogate pair, which no encoding of text can hold.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code_point = ord(text[error.start])
            raise FormatError("cannot encode this text",
                              f"character {error.start} is half a surrogate pair, "
                              f"U+{code_point:04X}, and no character",
                              "leave it out, or write the text again in UTF-8") from None

        ids = self._encode_text(text, parse_special)
        return ([*self.vocabulary.prefix, *ids, *self.vocabulary.suffix] if add_special_tokens
                else ids)

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes, UTF-8 or not, such that `decode_bytes` gives them back.

        Special tokens are not looked for, and nothing is normalized.
        Raises ModelError where the vocabulary has no token for a byte.
        """
        missing = sorted({*data} & {*self.missing_bytes})
        if missing:
            raise ModelError("cannot encode these bytes", "the vocabulary has no token for "
                             + ", ".join(f"0x{byte:02X}" for byte in missing),
                             "leave them out, or use a model whose vocabulary has all bytes")
        # A byte that is not UTF-8 travels as half a surrogate pair: no letter, no number, no
        # white space.
        return self._encode_ordinary(data.decode("utf-8", errors="surrogateescape"))

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids.

        What is not UTF-8 reads U+FFFD; an id without a token (a row of padding) reads nothing.
        """
        return decode(ids, self._readable_bytes if skip_special else self._token_bytes)

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The bytes of ids, joined."""
        token_bytes = self._readable_bytes if skip_special else self._token_bytes
        return b"".join(token_bytes.get(id, b"") for id in ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token. Raises ModelError for an id that no token has."""
        if id not in self._token_bytes:
            raise ModelError(f"cannot decode id {id}",
                             f"no token has it; the ids end at {self.vocab_size - 1}",
                             "use the tokenizer that came with the model")
        return self._token_bytes[id]

    def token_to_id(self, token: str) -> int | None:
        """The id of an added token, or of one in `bytes_to_unicode`'s characters, or None."""
        added = next((entry.id for entry in self.vocabulary.added_tokens
                      if entry.content == token), None)
        return self.vocabulary.tokens.get(token) if added is None else added

    def _normalize(self, text: str) -> str:
        for form in self.vocabulary.normalization:
            text = normalize(text, form)
        return text

    def _encode_text(self, text: str, parse_special: bool) -> list[int]:
        def encode_normalized(part: str) -> list[int]:
            return encode(self._normalize(part), self._added_normalized, self._encode_ordinary,
                          parse_special)

        return encode(text, self._added, encode_normalized, parse_special)

    def _encode_ordinary(self, text: str) -> list[int]:
        ids = []
        for piece in pre_tokenize(text, self._splitters):
            ids += (self._encode_word(piece) if len(piece) <= CACHED_LENGTH
                    else self._encode_piece(piece))
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode("utf-8", errors="surrogateescape")
        if data in self._whole_pieces:
            return [self._whole_pieces[data]]
        symbols = [self._byte_ids[byte]
                   for byte in data.translate(None, delete=self._dropped_bytes)]
        merge = encode_piece if len(symbols) < LONG_PIECE else encode_long_piece
        return merge(symbols, self.vocabulary.merges)
