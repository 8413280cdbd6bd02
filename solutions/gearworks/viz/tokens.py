"""How a tokenizer cuts a text: its merges step by step, and the borders of the tokens.

Both figures are computed here, in Python, by the tokenizer that is passed; the page holds only
the results. So the static page shows the texts that its author chose, and a notebook shows the
reader's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from gearworks.tokenizer import (Tokenizer, bytes_to_unicode, encode_piece, normalize,
                                 pre_tokenize, splitter)
from gearworks.viz.figure import Figure, player
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

_CANDIDATES_SHOWN = 4
_ZERO_WIDTH_JOINER = "\u200d"                # holds emoji together, so it is left where it is


@dataclass(frozen=True)
class Merge:
    """One merge: symbols[place] and its right neighbour become `merged`.

    candidates: (rank, pair) of every pair that could merge, lowest rank first.
    """

    symbols: tuple[int, ...]
    place: int
    rank: int
    merged: int
    candidates: tuple[tuple[int, tuple[int, int]], ...]

    @property
    def after(self) -> tuple[int, ...]:
        """The symbols after the merge."""
        return (*self.symbols[:self.place], self.merged, *self.symbols[self.place + 2:])


def merge_steps(symbols: Sequence[int],
                merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[Merge]:
    """The merges, in order, that turn a piece's symbols into what `encode_piece` returns.

    Raises FigureError if `encode_piece` returns something else.

    >>> [(step.rank, step.after)
    ...  for step in merge_steps([0, 1, 2], {(0, 1): (7, 3), (1, 2): (5, 4)})]
    [(5, (0, 4))]
    """
    steps: list[Merge] = []
    now = tuple(symbols)
    while candidates := sorted({(merges[pair][0], pair) for pair in pairwise(now)
                                if pair in merges}):
        rank, pair = candidates[0]
        place = next(i for i, here in enumerate(pairwise(now)) if here == pair)
        steps.append(Merge(now, place, rank, merges[pair][1], tuple(candidates)))
        now = steps[-1].after
    ids = encode_piece(symbols, merges)
    if list(now) != list(ids):
        raise FigureError("cannot replay the merges",
                          f"`encode_piece` gives {list(ids)}, and lowest rank first gives "
                          f"{list(now)}", "check `encode_piece` first")
    return steps


def merge_stepper(texts: str | Sequence[str], tokenizer: Tokenizer,
                  title: str = "Merging, one pair at a time") -> Figure:
    """The tokenization of a text as a replay: bytes, pieces, every merge with its rank, ids.

    texts: yours; or several, among which the reader chooses. Text is ordinary text here:
    special tokens are spelled out. A piece that has come before is not merged again. Raises
    FigureError for a text that is too long, or that the vocabulary answers with an added token.

    >>> from gearworks.vocabularies.vocabulary import Vocabulary
    >>> tokenizer = Tokenizer(Vocabulary({"a": 0, "b": 1, "ab": 2}, {(0, 1): (0, 2)}))
    >>> step = repr(merge_stepper("abb", tokenizer)).splitlines()[7]
    >>> step.removeprefix("Step 2 of 3: Piece 1 of 1, merge 1 of 1: ")
    '"a" + "b" makes "ab". Its rank, 0, is the lowest here.'
    """
    texts = [texts] if isinstance(texts, str) else texts
    return player([_merge_trace(text, tokenizer) for text in texts], title, choice="Text")


def token_borders(text: str, tokenizers: Tokenizer | Mapping[str, Tokenizer],
                  title: str = "Where the tokens end") -> Figure:
    """A text cut into tokens, by one tokenizer or, one below the other, by several with names.

    Pointing at a token, or moving to it with the arrow keys, shows its number, id and bytes.
    Text is ordinary text here: special tokens are spelled out.

    >>> from gearworks.vocabularies.vocabulary import Vocabulary
    >>> tokenizer = Tokenizer(Vocabulary({"a": 0, "b": 1, "ab": 2, "Ġ": 3}, {(0, 1): (0, 2)}))
    >>> token_borders("ab b", tokenizer)
    Where the tokens end
    4 characters, 4 bytes
      tokens (3 tokens): ab | ␣ | b
    """
    named = tokenizers if isinstance(tokenizers, Mapping) else {"tokens": tokenizers}
    lanes = []
    for name, tokenizer in named.items():
        ids = tokenizer.encode(text, parse_special=False)
        cells = [_token_cell(id, tokenizer, f"token {i}, ") for i, id in enumerate(ids)]
        lanes.append(Lane(name, cells, note=_count(len(ids), "token")))
    caption = f"{_count(len(text), 'character')}, {_count(len(text.encode('utf-8')), 'byte')}"
    return player(Trace(title, [Step(caption, lanes)], view="text"))


def _merge_trace(text: str, tokenizer: Tokenizer) -> Trace:
    vocabulary = tokenizer.vocabulary
    if vocabulary.sentencepiece is not None:
        raise FigureError("cannot replay the merges", "the vocabulary is SentencePiece's, and "
                          "this figure shows how bytes are merged",
                          "use `token_borders`, which shows any tokenizer's tokens")
    ids = tokenizer.encode(text, parse_special=False)
    normal = text
    for form in vocabulary.normalization:
        normal = normalize(normal, form)
    pieces = pre_tokenize(normal, [splitter(name) for name in vocabulary.splitters])
    steps = [Step(f"The text: {_count(len(text), 'character')}, "
                  f"{_count(len(text.encode('utf-8')), 'byte')}, "
                  f"{_count(len(pieces), 'piece')}. No token will cross the border of a piece.",
                  [Lane("characters",
                        [Cell(visible(character.encode("utf-8"))) for character in normal]),
                   Lane("bytes", [Cell(f"{byte:02X}") for byte in normal.encode("utf-8")]),
                   Lane("pieces", [Cell(visible(piece.encode("utf-8"))) for piece in pieces])])]

    ids_of_piece: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces, start=1):
        if piece in ids_of_piece:
            continue
        place = f"Piece {number} of {len(pieces)}"
        symbols = _byte_ids(piece, tokenizer)
        whole = tokenizer.token_to_id("".join(bytes_to_unicode()[byte]
                                              for byte in piece.encode("utf-8")))
        if vocabulary.ignore_merges and whole is not None:
            ids_of_piece[piece] = [whole]
            steps.append(Step(f"{place} is a token as a whole, and this vocabulary asks that "
                              "first: no merging.",
                              [Lane("token", [_token_cell(whole, tokenizer, "", "new")])]))
            continue
        merges = merge_steps(symbols, vocabulary.merges)
        ids_of_piece[piece] = list(merges[-1].after) if merges else symbols
        steps += [_merge_step(merge, f"{place}, merge {i} of {len(merges)}", tokenizer)
                  for i, merge in enumerate(merges, start=1)]

    if [id for piece in pieces for id in ids_of_piece[piece]] != ids:
        raise FigureError("cannot replay the merges",
                          "the text holds an added token, which no merge makes",
                          "leave it out of the text")
    steps.append(Step(f"No pair is left that could merge: {_count(len(ids), 'token')}.",
                      [Lane("tokens", [_token_cell(id, tokenizer) for id in ids]),
                       Lane("ids", [Cell(str(id)) for id in ids])]))
    return Trace(_shortened(text), steps)


def _merge_step(merge: Merge, place: str, tokenizer: Tokenizer) -> Step:
    def quoted(id: int) -> str:
        return f'"{visible(tokenizer.token_bytes(id))}"'

    def cells(symbols: Sequence[int], places: Sequence[int], emphasis: str) -> list[Cell]:
        return [_token_cell(id, tokenizer, "", emphasis if i in places else "")
                for i, id in enumerate(symbols)]

    left, right = merge.symbols[merge.place:merge.place + 2]
    pairs = [f"{quoted(a)} + {quoted(b)} rank {rank:,}" for rank, (a, b) in merge.candidates]
    more = len(pairs) - _CANDIDATES_SHOWN
    listed = "; ".join(pairs[:_CANDIDATES_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return Step(f"{place}: {quoted(left)} + {quoted(right)} makes {quoted(merge.merged)}. Its "
                f"rank, {merge.rank:,}, is the lowest here.",
                [Lane("before", cells(merge.symbols, (merge.place, merge.place + 1), "chosen")),
                 Lane("after", cells(merge.after, (merge.place,), "new"))],
                values={"pairs that could merge": listed,
                        "id of the new symbol": str(merge.merged)})


def _byte_ids(piece: str, tokenizer: Tokenizer) -> list[int]:
    characters = bytes_to_unicode()
    ids = (tokenizer.vocabulary.tokens.get(characters[byte], tokenizer.unk_id)
           for byte in piece.encode("utf-8"))
    # a byte without a token is lost, as in `Tokenizer.encode`
    return [id for id in ids if id is not None]


def _token_cell(id: int, tokenizer: Tokenizer, place: str = "", emphasis: str = "") -> Cell:
    data = tokenizer.token_bytes(id)
    return Cell(visible(data), emphasis=emphasis,
                note=f"{place}id {id}, bytes {data.hex(' ').upper()}")


def visible(data: bytes) -> str:
    """Bytes as text: white space and controls show, bytes that are no character are in hex.

    >>> visible(b" caf\\xc3\\xa9\\n"), visible(b"\\xe4\\xb8")
    ('␣café⏎', '<E4 B8>')
    """
    shown = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}

    def readable(c: str) -> str:
        plain = c.isprintable() or c == _ZERO_WIDTH_JOINER
        return shown.get(c, c if plain else f"<U+{ord(c):04X}>")

    text, parts = data.decode("utf-8", errors="surrogateescape"), []
    for broken, run in groupby(text, key=_is_lone_byte):
        if broken:
            parts.append(f"<{' '.join(f'{ord(c) - 0xDC00:02X}' for c in run)}>")
        else:
            parts += map(readable, run)
    return "".join(parts)


def _is_lone_byte(character: str) -> bool:
    return "\udc80" <= character <= "\udcff"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shortened(text: str) -> str:
    line = visible(text.encode("utf-8")).replace("␣", " ")
    return line if len(line) <= 60 else f"{line[:59]}…"
