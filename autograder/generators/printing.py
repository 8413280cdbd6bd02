"""Texts as a message shows them: nothing in them is invisible."""

import unicodedata


def visible(text: str) -> str:
    """A text in which what nobody can see stands as an escape: marks, other spaces, unassigned.

    >>> visible("e\\u0301 \\u3000中")
    'e\\\\u0301 \\\\u3000中'
    """
    return "".join(character if character == " " or unicodedata.category(character)[0] in "LNPS"
                   else character.encode("unicode_escape").decode("ascii")
                   for character in text)
