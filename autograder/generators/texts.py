"""Texts that are hard to cut, to encode and to send: pieces that shrink to the letter "a"."""

from collections.abc import Sequence

from hypothesis import strategies as st

# One character for each byte that begins a character of several: C2 to DF, E0 to EF, F0 to F4.
# Of E0 and F0 it is one of the first that they may begin, as in Thai and in emoji.
LEAD_BYTES = [*(chr(0x80 + 64 * lead + 41) for lead in range(30)), "\u0e01",
              *(chr(0x1000 * lead + 0x2D) for lead in range(1, 13)), "\ud7a3", "\ue000",
              "\uff41", "\U0001f44d", *(chr(0x40000 * lead) for lead in (1, 2, 3)),
              "\U00100000"]
WHITE_SPACE = [" ", "\n", "  ", "\r\n", "\t", "\n\n", "\u00a0", "\u3000", "\u2028", "\x85",
               "\x0b", "\x0c", "\x1c", "\u200b", "\r"]
WORDS = ["a", "b", "ab", "the", "Un", "THE", "un", "e\u0301", "naïve", "中文", "русский", "ſ",
         "ĠĊ", "ﬁ", "İ"]
DIGITS = ["1", "12", "2024", "٣", "½", "Ⅷ", "³"]
SIGNS = ["'s", "'", "'ll", "'T", "'re", "’", "’s", ".", "_", "snake_case", "!?", "-", "...",
         "a.b", "(a)", "[x]", "a*", "\\", "$^", "|", "{", "\x00", "\x7f", "\u00ad"]
MARKS = ["\u0301", "\ufeff", "\u200d", "\ufe0f", "👩\u200d👩\u200d👧"]
TAGS = ["<|im_end|>", "<END>", "<end>", "<e>", "[INST]", "a+"]
LONG = ["x" * 300, " " * 70, "ab" * 40]
ONE_MORE = st.sampled_from([False] + [True] * 39)
ALL = [*WORDS, *WHITE_SPACE, *SIGNS, *DIGITS, *MARKS, *TAGS, *LEAD_BYTES]


def texts(*kinds: Sequence[str], most: int = 6, long: bool = True) -> st.SearchStrategy[str]:
    """Texts of pieces of these kinds, all by default: the empty text, short ones, and one that
    is so long that most pieces are in it; and one very long word.

    most: pieces of a short one. long: whether there are long ones.
    """
    pieces = st.sampled_from([*dict.fromkeys(piece for kind in kinds or (ALL,)
                                             for piece in kind)])
    short = st.lists(pieces, max_size=most).map("".join)
    if not long:
        return short
    whole = many(pieces).map("".join)
    return st.one_of(short, whole, whole, st.sampled_from(["", *LONG]))


@st.composite
def many(draw, items: st.SearchStrategy) -> list:
    """About forty of these; shrinks to a few, item by item."""
    found = []
    while draw(ONE_MORE):
        found.append(draw(items))
    return found


def streams(most: int = 6) -> st.SearchStrategy[bytes]:
    """Bytes on the way to text: characters, their beginnings, their ends, and nonsense; a few
    or many. most: of a few."""
    characters = st.sampled_from(["a", *LEAD_BYTES, "\u0e01"]).map(str.encode)
    halves = st.builds(lambda data, at: data[:at % len(data) + 1], characters,
                       st.integers(0, 3))
    broken = st.sampled_from([b"\x80", b"\xbf", b"\xc0", b"\xc3", b"\xe0", b"\xed", b"\xf0",
                              b"\xf4", b"\xf5", b"\xff"])
    part = st.one_of(characters, characters, characters, halves, broken)
    return st.one_of(st.lists(part, max_size=most), many(characters)).map(b"".join)
