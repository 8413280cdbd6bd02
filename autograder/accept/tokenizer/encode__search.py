"""Searches on from where the last match ended, and strips with regular expressions."""

import re

import regex

from gearworks.vocabularies.unicode_tables import WORD_CHARACTER


def encode(text, added_tokens, encode_ordinary, parse_special=True):
    tokens = {token.content: token for token in added_tokens}
    if not tokens:
        return encode_ordinary(text) if text else []
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    result, begin, at = [], 0, 0
    while match := pattern.search(text, at):
        at = match.end()
        token = tokens[match.group()]
        is_hidden = token.special and not parse_special
        is_part = (token.single_word
                   and (WORD_CHARACTER.fullmatch(text[match.start() - 1:match.start()])
                        or WORD_CHARACTER.match(text[match.end():])))
        if is_hidden or is_part:
            continue
        left, right = text[begin:match.start()], text[match.end():]
        if token.lstrip:
            left = regex.sub(r"\s+\Z", "", left)
        stripped = regex.sub(r"\A\s+", "", right) if token.rstrip else right
        if token.lstrip and len(text) - len(stripped) <= begin:
            continue
        if left:
            result.extend(encode_ordinary(left))
        result.append(token.id)
        begin = match.end() + len(right) - len(stripped)
    return result + (encode_ordinary(text[begin:]) if text[begin:] else [])
