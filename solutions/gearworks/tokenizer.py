"""Byte-level BPE: text to token ids and back, with nothing lost on the way.

A text passes through five stages, each a function here:
    added tokens      `encode` finds <|im_start|> and its kind, which no other rule may touch
    normalization     `normalize` (Qwen: NFC; SmolLM2 and Llama 3: none)
    pre-tokenization  `pre_tokenize` cuts the rest into pieces, roughly words; no token crosses their borders
    bytes             UTF-8; the vocabulary writes every byte as one printable character, `bytes_to_unicode`
    merging           `encode_piece` joins neighbouring symbols, lowest rank first
The way back is shorter: `decode` joins the tokens' bytes, and `IncrementalDetokenizer` does so while they arrive.

Words: a symbol is an id on its way to becoming a token, a pair two neighbouring symbols, the rank of a merge its place
in the list that training made. Left out on purpose: training, offsets, batches, truncation, padding.

Source: Sennrich et al. 2016 (BPE), Radford et al. 2019 (bytes); behaviour as in the `tokenizers` library.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import count, pairwise, repeat
from pathlib import Path
from typing import Any

import regex

from gearworks.errors import FormatError, ModelError
from gearworks.vocabulary import (SPECIAL_ROLES, AddedToken, Vocabulary, read_vocabulary, tokenizer_config_from_gguf,
                                  tokenizer_json_from_gguf)
from gearworks.weights import read_json

# Unicode grows every year, and a new letter changes where words end. `tokenizers` 0.23 cuts by the letters and numbers
# of Unicode 16, single digits by those of Unicode 17, and normalizes by Unicode 11. Whatever `regex` and Python know,
# these ranges take out what is newer. A test compares every code point, and says when the lists must grow.
_SINCE_UNICODE_17 = (
    r"\u0558\u058B-\u058C\u05C8-\u05C9\u088F\u0B53-\u0B54\u0C5C\u0CDC\u1ACF-\u1AF0\u208F\u209D-\u209F\uA7CE-\uA7CF"
    r"\uA7D2\uA7D4\uA7DD-\uA7F1\uAB6C-\uAB6D\U000107BB-\U000107BF\U00010940-\U00010959\U00010EC5-\U00010EFB"
    r"\U00011B0A-\U00011B67\U00011DB0-\U00011DF1\U0001246F-\U0001247F\U00012550-\U00012686\U00016EA0-\U00016ED3"
    r"\U00016FF2-\U00016FF6\U000187F8-\U000187FF\U00018CD6-\U00018CDA\U00018D09-\U000191D2\U0001B123-\U0001B128"
    r"\U0001B168\U0001D127-\U0001D128\U0001D250-\U0001D281\U0001D6A6\U0001DF1F-\U0001DF24\U0001DF2B-\U0001DFFF"
    r"\U0001E6C0-\U0001E6FF\U0002B73A-\U0002B73F\U0002B81E\U0002CEA2-\U0002CEAD\U000323B0-\U0003FC3F")
_NUMBERS_OF_UNICODE_17 = r"\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6"
_NUMBERS_SINCE_UNICODE_18 = r"\U0001246F-\U0001247F\U00012550-\U00012686"
_NORMALIZED_SINCE_UNICODE_12 = re.compile(
    "([\u0558\u058B-\u058C\u05C8-\u05C9\u07FD\u0897-\u08D3\u09FE\u0C3C\u0D3B-\u0D3C\u0EBA\u1715\u1ABF-\u1AF0"
    "\u1DF6-\u1DFA\u209D-\u209F\u32FF\uA7F1-\uA7F4\uA82C\uAB69\U000105C9-\U000107BF\U00010D24-\U00010F85\U00011070"
    "\U0001133B\U00011382-\U000113D0\U0001145E\U00011839-\U00011A99\U00011D42-\U0001612F\U00016D63-\U0001B126"
    "\U0001CCD6-\U0001D128\U0001D250-\U0001D281\U0001D6A6\U0001DF95-\U0001DFFF\U0001E030-\U0001E6F5\U0001F16C"
    "\U0001FBF0-\U0001FBF9]+)")

_WORD_CHARACTER = regex.compile(rf"[\w--[{_SINCE_UNICODE_17}]]", regex.V1)
_WHITE_SPACE = regex.compile(r"\s")         # Unicode's White_Space; str.isspace and `re` count U+001C to U+001F too

LONG_PIECE = 16             # symbols from which the heap of `encode_long_piece` beats scanning again and again
CACHED_WORDS = 2**15        # pieces whose ids are remembered; a bound, since new words never end (10 MB, mostly)
CACHED_LENGTH = 32          # characters of a piece that is worth remembering


def bytes_to_unicode() -> dict[int, str]:
    """The character by which a byte-level vocabulary writes each byte: byte (0 to 255) -> one printable character.

    Bytes that are printable in Latin-1 ("!" to "~", "¡" to "¬", "®" to "ÿ") stand for themselves. The others
    (space, controls, U+007F to U+00A0, U+00AD), in order, are the characters from U+0100 on: so a space reads "Ġ".
    Source: GPT-2.

    >>> characters = bytes_to_unicode()
    >>> "".join(characters[byte] for byte in "café au lait".encode("utf-8"))
    'cafÃ©ĠauĠlait'
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_in = count(256)
    return {byte: chr(byte if byte in printable else next(stand_in)) for byte in range(256)}


def normalize(text: str, form: str) -> str:
    """A text in one of Unicode's normal forms: "NFC", "NFD", "NFKC" or "NFKD".

    Characters that are newer than Unicode 11 stay as they are, and nothing moves across them or combines with them, as
    in the `tokenizers` library. So the result does not depend on the version of Python.

    >>> normalize("e\u0301", "NFC") == "\u00e9"
    True
    """
    parts = _NORMALIZED_SINCE_UNICODE_12.split(text)        # newer characters are every second part
    parts[::2] = [unicodedata.normalize(form, part) for part in parts[::2]]
    return "".join(parts)


def splitter(name: str) -> regex.Pattern:
    """The rule of a pre-tokenizer as a pattern, whose matches are the pieces and cover any text.

    A letter is a character of Unicode's class L, a number one of class N. At each place the first that fits is taken:

    "gpt2": 1. a contraction, one of 's 't 're 've 'm 'll 'd, in lower case; 2. letters, 3. numbers, 4. characters that
        are neither of these nor white space, each with one space (U+0020) before them if it stands there; 5. white
        space without its last character, if something else follows; 6. white space.
    "llama3": 1. a contraction in any case; 2. letters, with one character before them that is no letter, no number, no
        \\r and no \\n, if it stands there; 3. one to three numbers; 4. characters that are neither letters, numbers
        nor white space, with one space before them if it stands there, and the \\r and \\n that follow; 5. white
        space up to the last \\r or \\n in it; 6. white space as 5 and 6 of "gpt2".
    "qwen2": as "llama3", but each number is a piece.
    "digits": each number is a piece; so is all that lies between two of them.

    Raises KeyError for any other name. Source: the patterns in these models' tokenizer.json.

    >>> splitter("gpt2").findall("I'll take  2000!")
    ['I', "'ll", ' take', ' ', ' 2000', '!']
    """
    # ASCII is named first: it spares most characters the search through the long list.
    letter = rf"[a-zA-Z[\p{{L}}--[{_SINCE_UNICODE_17}]]]"
    number = rf"[0-9[\p{{N}}--[{_SINCE_UNICODE_17}]]]"
    other = rf"[^\s\p{{L}}\p{{N}}--[{_SINCE_UNICODE_17}]]"
    other_or_space = rf"[^\r\n\p{{L}}\p{{N}}--[{_SINCE_UNICODE_17}]]"
    digit = rf"\p{{N}}{_NUMBERS_OF_UNICODE_17}--[{_NUMBERS_SINCE_UNICODE_18}]"
    # "ſ" is an "s" where case does not count.
    contraction = "'(?:[sSſtTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

    def llama(numbers: str) -> str:
        return (rf"{contraction}|{other_or_space}?{letter}+|{numbers}| ?{other}+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")

    patterns = {
        "digits": rf"[{digit}]|[^{digit}]+",
        "gpt2": rf"'(?:[stmd]|re|ve|ll)| ?{letter}+| ?{number}+| ?{other}+|\s+(?!\S)|\s+",
        "llama3": llama(f"{number}{{1,3}}"),
        "qwen2": llama(number),
    }
    return regex.compile(patterns[name], regex.V1)


def pre_tokenize(text: str, splitters: Sequence[regex.Pattern]) -> list[str]:
    """Cut a text into the pieces within which tokens may form; joined, they are the text again.

    splitters: patterns as `splitter` makes them; each one cuts the pieces that the one before it left.

    >>> pre_tokenize("in 2024", [splitter("digits"), splitter("gpt2")])
    ['in', ' ', '2', '0', '2', '4']
    """
    pieces = [text]
    for pattern in splitters:
        pieces = [match for piece in pieces for match in pattern.findall(piece)]
    return pieces


def encode_piece(symbols: Sequence[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge the symbols of one piece until no neighbours have a merge, and return what is left: token ids.

    merges: (left id, right id) -> (rank, merged id). Of all merges that are possible at a moment the one with the
    lowest rank is made, at the leftmost of its places. The cost may grow with the square of the length.
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


def encode_long_piece(symbols: Sequence[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """The same result as `encode_piece`, at a cost of n log n for n symbols: a million of them take seconds.

    >>> encode_long_piece([0, 1, 2], {(0, 1): (7, 3), (1, 2): (5, 4)})
    [0, 4]
    """
    # A linked list in two arrays: a merge leaves the new symbol in the left place and takes the right place out.
    # Place n is a sentinel, which is also what index -1 finds to the left of place 0.
    gone = -1
    n = len(symbols)
    symbols = [*symbols, gone]
    left, right = [*range(-1, n)], [*range(1, n + 1), n]

    # The number rank * n + place orders candidates by rank, then from left to right.
    heap = [merge[0] * n + place for place, merge in enumerate(map(merges.get, pairwise(symbols))) if merge]
    heapify(heap)
    while heap:
        rank, place = divmod(heappop(heap), n)
        merge = merges.get((symbols[place], symbols[right[place]]))
        if merge is None or merge[0] != rank:               # the pair that was here has changed since
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
def _longest_first(contents: tuple[str, ...]) -> re.Pattern:
    return re.compile("|".join(re.escape(content) for content in sorted(contents, key=len, reverse=True)))


def encode(text: str, added_tokens: Collection[AddedToken], encode_ordinary: Callable[[str], list[int]],
           parse_special: bool = True) -> list[int]:
    """Encode a text with added tokens in it: each becomes its id, `encode_ordinary` gives the ids of what is between.

    Where several added tokens fit, the one that begins first wins, then the longest. A match does not count, and is
    ordinary text from end to end, if the token is `single_word` and a word character touches it, or if it is special
    and `parse_special` is false. A token with `lstrip` or `rstrip` swallows the white space on that side.
    `encode_ordinary` is never called for an empty text.

    parse_special: false for what a user typed, so that nobody can forge the end of a message.

    >>> encode("hi<end>hi", [AddedToken("<end>", 7, special=True)], lambda text: [len(text)])
    [2, 7, 2]
    >>> encode("hi<end>hi", [AddedToken("<end>", 7, special=True)], lambda text: [len(text)], parse_special=False)
    [9]
    """
    if not added_tokens:
        return encode_ordinary(text) if text else []
    token_of = {token.content: token for token in added_tokens}
    ids = []
    rest = 0                                                # where the text begins that has no ids yet
    for match in _longest_first(tuple(token_of)).finditer(text):
        token = token_of[match[0]]
        start, end = match.span()
        if token.special and not parse_special:
            continue
        if token.single_word and (_WORD_CHARACTER.match(text[start - 1:start]) or _WORD_CHARACTER.match(text, end)):
            continue
        while token.lstrip and start > rest and _WHITE_SPACE.match(text, start - 1):
            start -= 1
        while token.rstrip and _WHITE_SPACE.match(text, end):
            end += 1
        if start > rest:
            ids += encode_ordinary(text[rest:start])
        ids.append(token.id)
        rest = end
    if rest < len(text):
        ids += encode_ordinary(text[rest:])
    return ids


def decode(ids: Iterable[int], token_bytes: Mapping[int, bytes]) -> str:
    """The text of token ids. Bytes that are not UTF-8 read U+FFFD; ids that are not in `token_bytes` read nothing.

    token_bytes: id -> the bytes that the token stands for. A character may be spread over several tokens.

    >>> decode([0, 1, 2], {0: b"caf", 1: b"\\xc3", 2: b"\\xa9"})
    'café'
    """
    return b"".join(token_bytes.get(id, b"") for id in ids).decode("utf-8", errors="replace")


class IncrementalDetokenizer:
    """Turns ids into text one by one, for a reader who watches: what it has given, joined, is `decode` of all the ids.

    skip_special: special tokens read nothing, as in `Tokenizer.decode`.

    >>> detokenizer = IncrementalDetokenizer(Tokenizer(Vocabulary({"caf": 0, "Ã": 1, "©": 2}, {})))
    >>> [detokenizer.push(id) for id in (0, 1, 2)], detokenizer.flush()
    (['caf', '', 'é'], '')
    """

    def __init__(self, tokenizer: "Tokenizer", skip_special: bool = False):
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pending = b""                                 # the beginning of a character, at most three bytes

    def push(self, id: int) -> str:
        """Take one id, and return the text that is now certain: whole characters, or the empty string."""
        data = self._pending + self._tokenizer.decode_bytes([id], self._skip_special)
        # A byte from 0xC0 on begins a character of two, three or four bytes and is never inside one, so text may be
        # cut before it. All that matters is whether the last such byte has yet what it asks for.
        cut = len(data)
        for length, byte in enumerate(reversed(data[-3:]), start=1):
            if byte >= 0xC0:
                wanted = 2 + (byte >= 0xE0) + (byte >= 0xF0)
                cut -= length if length < wanted else 0
                break
        self._pending = data[cut:]
        return data[:cut].decode("utf-8", errors="replace")

    def flush(self) -> str:
        """The end of the text: U+FFFD if the last character never became whole, else the empty string."""
        rest, self._pending = self._pending, b""
        return rest.decode("utf-8", errors="replace")


class Tokenizer:
    """A vocabulary and its rules, ready for use. Ids are Python ints; any number of threads may use one tokenizer.

    vocabulary: what it was made from; vocab_size: the largest id plus one (an embedding may have more rows, never
    fewer); bos_id, eos_id, unk_id, pad_id: the tokens with these roles, or None.
    missing_bytes: bytes that no token stands for, ascending. SmolLM2 misses 21: six control characters, the first
    byte of U+40000 to U+BFFFF (no characters yet), and 13 bytes that UTF-8 never uses.

    >>> Tokenizer(Vocabulary({"a": 0, "b": 1, "ab": 2, "Ġ": 3}, {(0, 1): (0, 2)})).encode("ab ba")
    [2, 3, 1, 0]
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        added = vocabulary.added_tokens
        written = bytes_to_unicode()
        byte_of = {character: byte for byte, character in written.items()}

        def is_written_in_bytes(token: str) -> bool:
            return byte_of.keys() >= {*token}

        # A token that is not written in byte characters stands for its own UTF-8.
        contents = {id: token for token, id in vocabulary.tokens.items()} | {token.id: token.content for token in added}
        self._token_bytes = {id: bytes(map(byte_of.get, token)) if is_written_in_bytes(token) else token.encode("utf-8")
                             for id, token in contents.items()}
        self._whole_pieces = {self._token_bytes[id]: id for token, id in vocabulary.tokens.items()
                              if vocabulary.ignore_merges and is_written_in_bytes(token)}
        special = {token.id for token in added if token.special}
        self._readable_bytes = {id: data for id, data in self._token_bytes.items() if id not in special}

        self._added = [token for token in added if not token.normalized]
        self._added_normalized = [replace(token, content=self._normalize(token.content))
                                  for token in added if token.normalized]
        self._splitters = [splitter(name) for name in vocabulary.splitters]
        self._byte_ids = [vocabulary.tokens.get(written[byte], vocabulary.unk_id) for byte in range(256)]
        self.missing_bytes = bytes(byte for byte in range(256) if written[byte] not in vocabulary.tokens)
        self._dropped_bytes = self.missing_bytes if vocabulary.unk_id is None else b""
        self._encode_word = lru_cache(maxsize=CACHED_WORDS)(self._encode_piece)

        self.vocab_size = 1 + max(self._token_bytes, default=-1)
        self.bos_id, self.eos_id, self.unk_id, self.pad_id = map(vocabulary.specials.get, SPECIAL_ROLES)

    @classmethod
    def from_file(cls, path: Path) -> "Tokenizer":
        """Read a `tokenizer.json`, and the `tokenizer_config.json` beside it if there is one.

        Raises NotAvailableError, or FormatError with the file's name, the reason and a hint (see `read_vocabulary`).
        """
        path = Path(path)
        config_path = path.with_name("tokenizer_config.json")
        config = read_json(config_path) if config_path.exists() else None
        try:
            return cls.from_json(read_json(path), config)
        except FormatError as error:
            raise FormatError(f"cannot use {path}", error.why, error.hint) from None

    @classmethod
    def from_json(cls, tokenizer: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> "Tokenizer":
        """Build from what `tokenizer.json` and `tokenizer_config.json` hold; errors as `read_vocabulary`."""
        return cls(read_vocabulary(tokenizer, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build from the metadata of a GGUF file; errors as `tokenizer_json_from_gguf`."""
        return cls.from_json(tokenizer_json_from_gguf(metadata), tokenizer_config_from_gguf(metadata))

    def encode(self, text: str, parse_special: bool = True, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text, equal to those of Hugging Face's `tokenizers` for every text.

        parse_special: false where the writer is not trusted; a special token's text is then ordinary text.
        add_special_tokens: put BOS, and what else the vocabulary asks for, around the text (Llama 3 wants BOS, SmolLM2
        nothing). Not for the output of a chat template, which holds its BOS already.
        Bytes in `missing_bytes` become the unknown token or, where there is none, nothing.
        Raises FormatError for half a surrogate pair, which no encoding of text can hold.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code_point = ord(text[error.start])
            raise FormatError("cannot encode this text", f"character {error.start} is half a surrogate pair, "
                              f"U+{code_point:04X}, and no character",
                              "decode the text with errors='replace' where it enters the program") from None

        def encode_normalized(part: str) -> list[int]:
            return encode(self._normalize(part), self._added_normalized, self._encode_ordinary, parse_special)

        ids = encode(text, self._added, encode_normalized, parse_special)
        return [*self.vocabulary.prefix, *ids, *self.vocabulary.suffix] if add_special_tokens else ids

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes, UTF-8 or not, such that `decode_bytes` gives them back.

        Special tokens are not looked for, and nothing is normalized.
        Raises ModelError where the vocabulary has no token for a byte.
        """
        missing = sorted({*data} & {*self.missing_bytes})
        if missing:
            raise ModelError("cannot encode these bytes", "the vocabulary has no token for "
                             + ", ".join(f"0x{byte:02X}" for byte in missing),
                             "use `encode`, which leaves them out as Hugging Face does, or another vocabulary")
        # A byte that is not UTF-8 travels as half a surrogate pair: no letter, no number, no white space.
        return self._encode_ordinary(data.decode("utf-8", errors="surrogateescape"))

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of ids. What is not UTF-8 reads U+FFFD; an id without a token (a row of padding) reads nothing."""
        return decode(ids, self._readable_bytes if skip_special else self._token_bytes)

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The bytes of ids, joined."""
        token_bytes = self._readable_bytes if skip_special else self._token_bytes
        return b"".join(token_bytes.get(id, b"") for id in ids)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of one token. Raises ModelError for an id that no token has."""
        if id not in self._token_bytes:
            raise ModelError(f"cannot decode id {id}", f"no token has it; the ids end at {self.vocab_size - 1}",
                             "does the model belong to this vocabulary?")
        return self._token_bytes[id]

    def token_to_id(self, token: str) -> int | None:
        """The id of an added token, or of one written in the characters of `bytes_to_unicode`; None if unknown."""
        added = next((entry.id for entry in self.vocabulary.added_tokens if entry.content == token), None)
        return self.vocabulary.tokens.get(token) if added is None else added

    def _normalize(self, text: str) -> str:
        for form in self.vocabulary.normalization:
            text = normalize(text, form)
        return text

    def _encode_ordinary(self, text: str) -> list[int]:
        ids = []
        for piece in pre_tokenize(text, self._splitters):
            ids += self._encode_word(piece) if len(piece) <= CACHED_LENGTH else self._encode_piece(piece)
        return ids

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode("utf-8", errors="surrogateescape")
        if data in self._whole_pieces:
            return [self._whole_pieces[data]]
        symbols = [self._byte_ids[byte] for byte in data.translate(None, delete=self._dropped_bytes)]
        merge = encode_piece if len(symbols) < LONG_PIECE else encode_long_piece
        return merge(symbols, self.vocabulary.merges)
