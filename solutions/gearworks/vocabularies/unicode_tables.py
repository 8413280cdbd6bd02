"""Letters, numbers, normal forms: as the `tokenizers` library knows them, not this Python.

Left out on purpose: what to do with them, which is the subject of `gearworks.tokenizer`.
"""

import re
import unicodedata

import regex

# Unicode grows every year, and a new letter changes where words end. `tokenizers` 0.23 cuts by
# the letters and numbers of Unicode 16, single digits by those of Unicode 17, and normalizes by
# Unicode 11. Whatever `regex` and Python know, these ranges take out what is newer. A test
# compares every code point, and says when the lists must grow.
_SINCE_UNICODE_17 = (
    r"\u0558\u058B-\u058C\u05C8-\u05C9\u088F\u0B53-\u0B54\u0C5C\u0CDC\u1ACF-\u1AF0\u208F"
    r"\u209D-\u209F\uA7CE-\uA7CF\uA7D2\uA7D4\uA7DD-\uA7F1\uAB6C-\uAB6D\U000107BB-\U000107BF"
    r"\U00010940-\U00010959\U00010EC5-\U00010EFB\U00011B0A-\U00011B67\U00011DB0-\U00011DF1"
    r"\U0001246F-\U0001247F\U00012550-\U00012686\U00016EA0-\U00016ED3\U00016FF2-\U00016FF6"
    r"\U000187F8-\U000187FF\U00018CD6-\U00018CDA\U00018D09-\U000191D2\U0001B123-\U0001B128"
    r"\U0001B168\U0001D127-\U0001D128\U0001D250-\U0001D281\U0001D6A6\U0001DF1F-\U0001DF24"
    r"\U0001DF2B-\U0001DFFF\U0001E6C0-\U0001E6FF\U0002B73A-\U0002B73F\U0002B81E"
    r"\U0002CEA2-\U0002CEAD\U000323B0-\U0003FC3F")
_SYMBOLS_SINCE_UNICODE_17 = (
    r"\u20C1-\u20C4\u2B96\uFBC3-\uFBD2\uFD90-\uFD91\uFDC8-\uFDCE\U0001CCFA-\U0001CCFC"
    r"\U0001CEBA-\U0001CED0\U0001CED2-\U0001CED4\U0001CEDD-\U0001CEFD\U0001D1EB-\U0001D1FF"
    r"\U0001DB00-\U0001DB1C\U0001F1AE\U0001F6D8-\U0001F6D9\U0001F777-\U0001F77A"
    r"\U0001F7DA-\U0001F7DB\U0001F7F1-\U0001F7FF\U0001F8D0-\U0001F8D8\U0001FA54-\U0001FA57"
    r"\U0001FA8A-\U0001FA8E\U0001FAC8\U0001FACC-\U0001FACD\U0001FADD\U0001FAEA-\U0001FAEB"
    r"\U0001FAEF\U0001FAF9-\U0001FAFA\U0001FBFA")
_NUMBERS_OF_UNICODE_17 = r"\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6"
_NUMBERS_SINCE_UNICODE_18 = r"\U0001246F-\U0001247F\U00012550-\U00012686"
_NORMALIZED_SINCE_UNICODE_12 = re.compile(
    "([\u0558\u058B-\u058C\u05C8-\u05C9\u07FD\u0897-\u08D3\u09FE\u0C3C\u0D3B-\u0D3C\u0EBA"
    "\u1715\u1ABF-\u1AF0\u1DF6-\u1DFA\u209D-\u209F\u32FF\uA7F1-\uA7F4\uA82C\uAB69"
    "\U000105C9-\U000107BF\U00010D24-\U00010F85\U00011070\U0001133B\U00011382-\U000113D0"
    "\U0001145E\U00011839-\U00011A99\U00011D42-\U0001612F\U00016D63-\U0001B126"
    "\U0001CCD6-\U0001D128\U0001D250-\U0001D281\U0001D6A6\U0001DF95-\U0001DFFF"
    "\U0001E030-\U0001E6F5\U0001F16C\U0001FBF0-\U0001FBF9]+)")

# Character classes for `regex`, version 1: each may stand alone or between [ and ].
# ASCII is named first: it spares most characters the search through the long list.
LETTER = rf"[a-zA-Z[\p{{L}}--[{_SINCE_UNICODE_17}]]]"
NUMBER = rf"[0-9[\p{{N}}--[{_SINCE_UNICODE_17}]]]"
MARK = rf"[\p{{M}}--[{_SINCE_UNICODE_17}]]"
# the cuneiform ones lie within a range of numbers that are newer
PUNCTUATION = rf"[[\p{{P}}--[{_SINCE_UNICODE_17}\u2E60-\u2E63]]\U00012470-\U00012474]"
SYMBOL = rf"[\p{{S}}--[{_SINCE_UNICODE_17}{_SYMBOLS_SINCE_UNICODE_17}]]"
# Capitals, small letters and the rest; U+0295 has changed sides since
LETTER_KINDS = {kind: rf"[\p{{{kind}}}--[{_SINCE_UNICODE_17}]]" for kind in ("Lu", "Lt", "Lm")}
LETTER_KINDS |= {"Ll": rf"[[\p{{Ll}}--[{_SINCE_UNICODE_17}]]\u0295]",
                 "Lo": rf"[\p{{Lo}}--[{_SINCE_UNICODE_17}\u0295]]"}
DIGIT = rf"[\p{{N}}{_NUMBERS_OF_UNICODE_17}--[{_NUMBERS_SINCE_UNICODE_18}]]"

WORD_CHARACTER = regex.compile(rf"[\w--[{_SINCE_UNICODE_17}]]", regex.V1)
# Unicode's White_Space; str.isspace and `re` count U+001C to U+001F too
WHITE_SPACE = regex.compile(r"\s")


def normalize(text: str, form: str) -> str:
    """A text in one of Unicode's normal forms: "NFC", "NFD", "NFKC" or "NFKD".

    Characters that are newer than Unicode 11 stay as they are, and nothing moves across them or
    combines with them, as in the `tokenizers` library. So the result does not depend on the
    version of Python.

    >>> normalize("e\u0301", "NFC") == "\u00e9"
    True
    """
    parts = _NORMALIZED_SINCE_UNICODE_12.split(text)    # newer characters are every second part
    parts[::2] = [unicodedata.normalize(form, part) for part in parts[::2]]
    return "".join(parts)
