"""Finds all tokens first, then fills in what is between them."""

from gearworks.tokenizer import WHITE_SPACE, WORD_CHARACTER, any_of


def _spans(text, tokens, parse_special):
    by_content = {token.content: token for token in tokens}
    end_of_last = 0
    for match in any_of(tuple(by_content)).finditer(text):
        token, (start, end) = by_content[match.group()], match.span()
        if token.special and not parse_special:
            continue
        beside = [text[start - 1:start], text[end:end + 1]]
        if token.single_word and any(map(WORD_CHARACTER.match, filter(None, beside))):
            continue
        if token.lstrip:
            while start > end_of_last and WHITE_SPACE.match(text[start - 1]):
                start -= 1
        if token.rstrip:
            while end < len(text) and WHITE_SPACE.match(text[end]):
                end += 1
        if token.lstrip and end_of_last >= end:
            continue
        end_of_last = end
        yield start, end, token.id


def encode(text, added_tokens, encode_ordinary, parse_special=True):
    if not added_tokens:
        return list(encode_ordinary(text)) if text else []
    out, place = [], 0
    for start, end, id in [*_spans(text, added_tokens, parse_special),
                           (len(text), len(text), None)]:
        if start > place:
            out.extend(encode_ordinary(text[place:start]))
        if id is not None:
            out.append(id)
        place = end
    return out
