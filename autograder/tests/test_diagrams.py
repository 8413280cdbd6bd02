"""Diagrams: they fit their paper, say their facts in words, and have the engine's numbers."""

import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from autograder.chapters.chapter import ChapterError
from autograder.chapters.pictures import with_pictures
from autograder.diagrams import DIAGRAMS, draw
from autograder.diagrams.canvas import MARGIN, NAMESPACE

REPOSITORY = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((REPOSITORY / "book" / "chapters").glob("*.md"))


def elements(name):
    return ElementTree.fromstring(draw(name).svg()).iter()


@pytest.mark.parametrize("name", DIAGRAMS)
def test_everything_is_on_the_paper(browser, name):
    """As a browser sets it, in the fonts that it has."""
    page = browser.new_page()
    page.set_content(draw(name).svg())
    outside = page.evaluate("""() => {
        const svg = document.querySelector("svg"), paper = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text, rect, path, polygon, circle")].filter(each => {
            const box = each.getBoundingClientRect();
            return box.left < paper.left || box.right > paper.right + 1
                || box.top < paper.top || box.bottom > paper.bottom + 1;
        }).map(each => each.textContent || each.outerHTML);
    }""")
    page.close()
    assert outside == []


@pytest.mark.parametrize("name", DIAGRAMS)
def test_texts_do_not_overlap(browser, name):
    page = browser.new_page()
    page.set_content(draw(name).svg())
    overlapping = page.evaluate("""() => {
        const texts = [...document.querySelectorAll("text")].filter(each => each.textContent)
            .map(each => [each.textContent, each.getBoundingClientRect()]);
        return texts.flatMap(([one, a], place) => texts.slice(place + 1)
            .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
                && a.top < b.bottom - 4 && b.top < a.bottom - 4)
            .map(([other]) => `${one} | ${other}`));
    }""")
    page.close()
    assert overlapping == []


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_has_words_and_no_colour_alone(name):
    canvas = draw(name)
    assert 80 < len(canvas.words) < 700 and canvas.words.endswith(".")
    assert draw(name).svg() == canvas.svg()                          # the same every time
    root = ElementTree.fromstring(canvas.svg())
    assert root.get("role") == "img" and root.get("aria-label") == canvas.words
    assert float(root.get("width")) == canvas.width + 2 * MARGIN
    assert [*root.iter(f"{{{NAMESPACE}}}text")]


def test_attention_by_hand_is_worked_rightly():
    """The sentence below the diagram has these numbers too."""
    texts = [each.text for each in elements("attention-by-hand") if each.tag.endswith("text")]
    assert {"2.12", "2.83", "1.41", "0.28", "0.58", "0.14", "5.6", "8.6"} <= {*texts}
    assert texts.count("−∞") == 3
    chapter = (REPOSITORY / "book" / "chapters" / "04_transformer.md").read_text("utf-8")
    assert "28, 58 and 14 %" in chapter and "(5.6, 8.6)" in chapter


def test_a_block_is_decoded_by_the_engine():
    words = draw("q4-1-block").words
    scale, least = map(float, re.search(r"scale is ([\d.]+), the minimum (-[\d.]+)",
                                        words).groups())
    byte = int(re.search("first byte is ([0-9a-f]{2})", words)[1], 16)
    first, later = map(float, re.search(
        r"plus -[\d.]+, (-?[\d.]+), and value 16 is (-?[\d.]+)\.$", words).groups())
    assert first == scale * (byte & 15) + least and later == scale * (byte >> 4) + least
    assert byte & 15 != byte >> 4


def test_every_diagram_is_in_a_chapter_and_in_its_notebook():
    named = [name for path in CHAPTERS for name in re.findall(
        r"^```\{diagram\} (\S+)$", path.read_text("utf-8"), re.MULTILINE)]
    assert sorted(named) == sorted(DIAGRAMS)
    cells = [cell.source for path in sorted((REPOSITORY / "chapters").glob("*.ipynb"))
             for cell in nbformat.read(path, as_version=4).cells]
    for name in DIAGRAMS:
        picture = with_pictures("here", f"```{{diagram}} {name}\n```", REPOSITORY)
        assert picture.startswith('<img alt="') and any(picture in cell for cell in cells)


def test_a_name_that_no_diagram_has_is_refused():
    with pytest.raises(ChapterError, match="there is no diagram 'leyer', but .*layer"):
        with_pictures("here", "```{diagram} leyer\n```", REPOSITORY)
