"""Matplotlib's plots as SVG without paper, in the ink and font of a page, light or dark.

An SVG in an <img> knows nothing of the page, so each plot stands in the page itself, with a
description for those who do not see it: `mystnb: {image: {alt: …}}` on the cell that draws it.
"""

import base64
import io
import re
from html import escape

from nbformat import NotebookNode
from PIL import Image

from autograder.chapters.chapter import Chapter, ChapterError

_SETTINGS = {"figure.facecolor": "none", "axes.facecolor": "none",
             "legend.facecolor": "inherit", "figure.dpi": "72", "svg.fonttype": "none",
             "svg.hashsalt": "gearworks"}
KERNEL_ARGUMENTS = ["--IPKernelApp.log_level=ERROR", "--InlineBackend.figure_formats=svg",
                    *(f"--InlineBackend.rc={name}={value}"
                      for name, value in _SETTINGS.items())]
_STYLE = re.compile(
    r'<style type="text/css">\*\{stroke-linejoin: round; stroke-linecap: butt\}</style>')
_PNG = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")
_SMALL_PNG = 8_000            # bytes; a larger one is a picture of many numbers
_IDS = re.compile(r'(\bid="|\bhref="#|url\(#)')


def check_descriptions(chapter: Chapter) -> None:
    """Raise ChapterError for a plot without description, before minutes go into running it."""
    for cell in chapter.cells:
        if cell.kind == "code" and "plt.show()" in cell.source:
            _description(chapter, cell.source)


def with_inline_plots(notebook: NotebookNode, chapter: Chapter) -> NotebookNode:
    """The same notebook with every SVG made a part of the page.
    Raises ChapterError for a plot without description."""
    count = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            svg = output.get("data", {}).pop("image/svg+xml", None)
            if svg is not None:
                count += 1
                output.data["text/html"] = inline_svg(svg, _description(chapter, cell.source),
                                                      f"plot{count}-")
    return notebook


def _description(chapter: Chapter, source: str) -> str:
    """What the cell with this source says that its plot shows."""
    cell = next((cell for cell in chapter.cells if cell.source == source), None)
    alt = ((cell.metadata.get("mystnb") or {}).get("image") or {}).get("alt") if cell else None
    if not alt:
        place = (f"{chapter.path.name}, line {cell.line}" if cell
                 else f"{chapter.path.name}, {source[:40]!r}")
        raise ChapterError(f"{place}: a plot without a description", "not every reader sees it",
                           "add to the cell's metadata: mystnb: {image: {alt: what the plot "
                           "shows}}")
    return alt


def inline_svg(svg: str, alt: str, prefix: str) -> str:
    """An SVG of matplotlib's as a part of a page.
    prefix: for its ids, since those of two plots may be the same.

    >>> svg = '<?xml version="1.0"?><svg viewBox="0 0 7 9" width="7pt" height="9pt"></svg>'
    >>> inline_svg(svg, "A line", "p1-")[:54]
    '<div class="plot"><svg viewBox="0 0 7 9" role="img" ar'
    """
    start = svg.index("<svg")
    end = svg.index(">", start)
    opening, rest = svg[start:end], svg[end:]
    width = float(re.search(r'\bwidth="([\d.]+)pt"', opening)[1]) * 4 / 3      # in CSS pixels
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.S)
    # it would hold for the whole page; its settings are on the <svg> instead
    rest = _STYLE.sub("", rest)
    rest = _PNG.sub(_smaller, rest)
    rest = _IDS.sub(rf"\g<1>{prefix}", rest).replace("#000000", "currentColor")
    rest = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "inherit", rest)
    opening += (f' role="img" aria-label="{escape(alt)}" fill="currentColor" '
                f'stroke-linejoin="round" stroke-linecap="butt" style="width: {width:.0f}px; '
                f'min-width: min({width:.0f}px, 30rem)"')
    return f'<div class="plot">{opening}{rest.rstrip()}</div>'


def _smaller(picture: re.Match) -> str:
    """A picture in the SVG, a heat map say, as the page loads it: a tenth of its bytes."""
    data = base64.b64decode(picture[1])
    if len(data) < _SMALL_PNG:
        return picture[0]
    shrunk = io.BytesIO()
    Image.open(io.BytesIO(data)).save(shrunk, "WEBP", quality=85)
    return f"data:image/webp;base64,{base64.b64encode(shrunk.getvalue()).decode()}"
