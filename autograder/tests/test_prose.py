"""The words of chapters and pages are spelled as in a dictionary, or as in `book/words.txt`."""

import re
from pathlib import Path

import pytest
from spellchecker import SpellChecker

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("book/*.md"), *REPOSITORY.glob("book/chapters/*.md"),
                REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
KNOWN = (REPOSITORY / "book" / "words.txt").read_text(encoding="utf-8").split()
NO_PROSE = re.compile(
    r"\A---\n.*?^---\n|^(`{3,}|~{3,}).*?^\1\s*$|<svg.*?</svg>|\$[^$]+\$|`[^`]+`|\]\([^)]*\)"
    r"|<[^>]+>|https?://\S+|\{[^}]*\}", re.DOTALL | re.MULTILINE)
WORD = re.compile(r"(?<![\w./#-])[A-Za-z][a-z]+(?:['’][a-z]+)?(?![\w/])")


def words_of(text):
    """The words of a text in Markdown, without its code, formulas, links and names with digits.

    >>> sorted(words_of("The `cach` holds $kv$, [as](x.md) Marta's SmolLM2 says."))
    ['Marta', 'The', 'as', 'holds', 'says']
    """
    return {re.sub("['’]s$", "", word) for word in WORD.findall(NO_PROSE.sub(" ", text))}


def unknown(text, dictionary=SpellChecker()):       # reading it takes a second
    """The words of a text that neither the dictionary nor the list has."""
    listed = {word.lower() for word in KNOWN}
    return sorted(word for word in words_of(text)
                  if word.lower() not in dictionary and word.lower() not in listed)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_words_are_spelled_rightly(path):
    assert unknown(path.read_text(encoding="utf-8")) == [], "or add it to book/words.txt"


def test_a_slip_is_found():
    assert unknown("It lenghtens the cache of the transfomer.") == ["lenghtens", "transfomer"]


def test_the_list_is_sorted_and_has_no_word_for_nothing():
    assert sorted(KNOWN, key=lambda word: (word.lower(), word)) == KNOWN
    assert len({word.lower() for word in KNOWN}) == len(KNOWN)
    used = set().union(*(words_of(path.read_text(encoding="utf-8")) for path in PAGES))
    assert [word for word in KNOWN if word not in used
            and word.lower() not in {each.lower() for each in used}] == []
