"""Pictures of a chapter, put into its notebook: Colab loads none that lie beside it.

A diagram is named, or written into the chapter as SVG, in the page's own ink. The book shows it
in the page. Editors of notebooks take SVG for unsafe and show the words in it, so a notebook
gets a picture.
"""

import base64
import html
import os
import re
from pathlib import Path
from xml.etree import ElementTree

from autograder.chapters.chapter import ChapterError

KINDS = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg",
         ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
SVG = "http://www.w3.org/2000/svg"
MARGIN = 10                                     # around a diagram, in its own units

# The ink of a diagram in a notebook. The paper is its own: nothing tells a picture whether the
# page around it is dark, only whether the reader's system is.
INK = """\
svg { color: #1f2328; background: #fff; font-family: sans-serif }
@media (prefers-color-scheme: dark) { svg { color: #e6e6e6; background: #1c1e21 } }"""


def with_pictures(place: str, source: str, folder: Path) -> str:
    """Markdown with its pictures inside of it.

    place: where it stands, for errors; folder: what paths are relative to. Raises ChapterError
    for a picture that is not there, and for a diagram without words for who cannot see it.
    """
    def linked(match: re.Match) -> str:
        alt, link = match.groups()
        path = Path(os.path.normpath(folder / link))    # chapters/ itself need not be there yet
        kind = KINDS.get(path.suffix.lower())
        if kind is None or not path.is_file():
            raise ChapterError(
                f"{place}: cannot put {link} into the notebook",
                "there is no such file" if kind else "it is no picture of a known kind",
                "write the path relative to chapters/, as ../book/_static/picture.svg")
        return _picture(alt, kind, path.read_bytes())

    def named(match: re.Match) -> str:
        from autograder.diagrams import draw                # they need the engine

        try:
            canvas = draw(match[1])
        except LookupError as error:
            raise ChapterError(f"{place}: cannot draw a diagram", str(error.args[0]),
                               "use one of these names") from None
        return _picture(canvas.words, KINDS[".svg"], canvas.svg().encode())

    def drawn(match: re.Match) -> str:
        return _diagram(place, match[1])

    source = re.sub(r"^```\{diagram\} (\S+)\n```$", named, source, flags=re.MULTILINE)
    source = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", linked, source)
    return re.sub(r'(?:<div class="flow"[^>]*>\s*)?(<svg\b.*?</svg>)(?:\s*</div>)?', drawn,
                  source, flags=re.DOTALL)


def _picture(alt: str, kind: str, data: bytes) -> str:
    # As <img>, since VS Code's Markdown refuses an SVG that is written as ![](data:…).
    return (f'<img alt="{html.escape(alt)}" '
            f'src="data:{kind};base64,{base64.b64encode(data).decode()}">')


def _diagram(place: str, source: str) -> str:
    """The picture that shows an SVG element of a page."""
    ElementTree.register_namespace("", SVG)
    try:
        root = ElementTree.fromstring(source.replace("<svg", f'<svg xmlns="{SVG}"', 1))
        words = root.attrib["aria-label"]
        x, y, width, height = map(float, root.attrib["viewBox"].split())
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise ChapterError(f"{place}: cannot put this diagram into the notebook", repr(error),
                           "write XML, with an aria-label and a viewBox of four numbers"
                           ) from None
    root.set("viewBox", f"{x - MARGIN:g} {y - MARGIN:g} {width + 2 * MARGIN:g} "
                        f"{height + 2 * MARGIN:g}")
    root.set("width", f"{float(root.get('width', width)) * (1 + 2 * MARGIN / width):g}")
    style = ElementTree.Element("style")
    style.text = INK
    root.insert(0, style)
    return _picture(words, KINDS[".svg"], ElementTree.tostring(root))
