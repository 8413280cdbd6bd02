r"""How byte-level vocabularies cut a text, as their tokenizer.json and GGUF files name it.

`gearworks.tokenizer.splitter` holds the rules that the course explains. The others are here:
the pattern as published, and the same for `regex`, made to cover every text: what lies between
two matches is a piece, as `tokenizers` has it.
"""

import re
from functools import cache

from gearworks.vocabularies.unicode_tables import (LETTER, LETTER_KINDS, MARK, NUMBER,
                                                   PUNCTUATION, SYMBOL)

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# GPT-4o's and gpt-oss's: words of capitals and small letters, with their ending
O200K_PATTERN = (rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{_ENDING}"
                 rf"|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{_ENDING}"
                 r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERN_OF_SPLITTER = {
    "gpt2": GPT2_PATTERN, "llama3": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN,
    "o200k": O200K_PATTERN,
    # Mistral-Nemo's: without endings, and each digit alone
    "tekken": O200K_PATTERN.replace(_ENDING, "").replace(r"\p{N}{1,3}", r"\p{N}"),
    # DeepSeek-V3 cuts three times
    "three digits": r"\p{N}{1,3}",
    "ideographs and kana": "[一-龥\u3040-ゟ゠-ヿ]+",
    "deepseek": (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
                 "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
                 "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
}
OTHER_SPLITTERS = PATTERN_OF_SPLITTER.keys() - {"gpt2", "llama3", "qwen2"}
SPLITTER_OF_PATTERN = {pattern: name for name, pattern in PATTERN_OF_SPLITTER.items()}

# A GGUF file names it in `tokenizer.ggml.pre`; these names mean rules that we hold.
_DEEPSEEK = ("three digits", "ideographs and kana", "deepseek")
SPLITTERS_OF_GGUF = {
    "gpt-2": ("gpt2",), "phi-2": ("gpt2",),
    "smollm": ("digits", "gpt2"), "starcoder": ("digits", "gpt2"), "refact": ("digits", "gpt2"),
    "llama-bpe": ("llama3",), "llama3": ("llama3",), "llama-v3": ("llama3",),
    "qwen2": ("qwen2",), "gpt-4o": ("o200k",), "tekken": ("tekken",),
    "deepseek-v3": _DEEPSEEK,
}
# Vocabularies that look a whole piece up before merging it, and those with BOS before a text,
# as llama.cpp knows both by the splitter's name
WHOLE_PIECES = {("llama3",), ("o200k",), ("tekken",)}
WITH_BOS = {("llama3",), ("tekken",)}

_CLASSES = {"L": LETTER, "N": NUMBER, "M": MARK, "P": PUNCTUATION, "S": SYMBOL} | LETTER_KINDS


@cache
def covering(name: str) -> str:
    r"""A published pattern, of `PATTERN_OF_SPLITTER`, for `regex`; its matches cover any text.

    >>> import regex
    >>> regex.findall(covering("three digits"), "in 12345 days")
    ['in ', '123', '45', ' days']
    """
    pattern = re.sub(r"\\p\{(\w+)\}", lambda found: _CLASSES[found[1]],
                     PATTERN_OF_SPLITTER[name])
    # "ſ" is an "s" where case does not count
    pattern = pattern.replace("(?i:'s", "(?:'[sSſ]").replace(
        "'t|'re|'ve|'m|'ll|'d)", "'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
    return rf"(?V1){pattern}|(?s:(?:(?!{pattern}).)+)"
