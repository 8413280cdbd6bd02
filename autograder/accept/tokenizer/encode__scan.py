"""Looks at every place of the text by hand, without a pattern for the tokens."""

from gearworks.vocabularies.unicode_tables import WHITE_SPACE, WORD_CHARACTER


def encode(text, added_tokens, encode_ordinary, parse_special=True):
    longest_first = sorted(added_tokens, key=lambda token: -len(token.content))
    ids, done, place = [], 0, 0

    def is_word(at):
        return 0 <= at < len(text) and WORD_CHARACTER.match(text[at]) is not None

    while place < len(text):
        token = next((token for token in longest_first
                      if text.startswith(token.content, place)), None)
        if token is None:
            place += 1
            continue
        start, end = place, place + len(token.content)
        place = end
        if token.special and not parse_special:
            continue
        if token.single_word and (is_word(start - 1) or is_word(end)):
            continue
        if token.lstrip:
            while start > done and WHITE_SPACE.match(text[start - 1]):
                start -= 1
        if token.rstrip:
            while end < len(text) and WHITE_SPACE.match(text[end]):
                end += 1
        if token.lstrip and end <= done:
            continue
        if done < start:
            ids += encode_ordinary(text[done:start])
        ids.append(token.id)
        done = end
    if done < len(text):
        ids += encode_ordinary(text[done:])
    return ids
