"""The hand that draws all diagrams: its strokes, its type, its colours."""

import math
from collections.abc import Sequence
from importlib.resources import files
from xml.etree import ElementTree

NAMESPACE = "http://www.w3.org/2000/svg"
MARGIN = 12                             # of paper around the drawing
HEAD = 8                                # length of an arrow's head
SIZE = 13                               # of type, in the drawing's units

Point = tuple[float, float]


class Canvas:
    """A drawing. Lengths are in its own units: one of them is a pixel at its full width.

    words: the same in a sentence or two, for who does not see it. A kind is a colour, 1 to 4,
    always with words beside it: no colour alone says anything.
    """

    def __init__(self, width: float, height: float, words: str):
        self.width, self.height, self.words = width, height, words
        self._root = ElementTree.Element("g")

    def box(self, x: float, y: float, width: float, height: float, text: str = "",
            kind: int = 0, *, mono: bool = False, faded: bool = False, round_: float = 4,
            size: float = SIZE) -> None:
        """A box with a text in its middle; lines of the text are divided by line breaks."""
        self._add("rect", f"box kind-{kind}" + " faded" * faded, x=x, y=y, width=width,
                  height=height, rx=round_)
        lines = text.split("\n") if text else []
        base = y + height / 2 + size * (0.35 - 0.65 * (len(lines) - 1))
        for place, line in enumerate(lines):
            self.text(x + width / 2, base + 1.3 * size * place, line, "middle", mono=mono,
                      muted=faded, size=size)

    def cells(self, x: float, y: float, values: Sequence[str], width: float = 30,
              height: float = 26, kinds: Sequence[int] | int = 0, faded: Sequence[bool] = (),
              gap: float = 0, size: float = SIZE) -> list[Point]:
        """A row of boxes of equal size; returns the middles of their lower edges."""
        for place, value in enumerate(values):
            self.box(x + place * (width + gap), y, width, height, value,
                     kinds if isinstance(kinds, int) else kinds[place], mono=True, round_=0,
                     faded=bool(faded) and faded[place], size=size)
        return [(x + place * (width + gap) + width / 2, y + height)
                for place in range(len(values))]

    def text(self, x: float, y: float, text: str, anchor: str = "start", *, mono: bool = False,
             muted: bool = False, bold: bool = False, size: float = SIZE) -> None:
        """A line of text; y is its base line."""
        names = ["text"] + ["mono"] * mono + ["muted"] * muted + ["bold"] * bold
        self._add("text", " ".join(names), text, x=x, y=y, **{
            "text-anchor": anchor, "font-size": size})

    def line(self, *points: Point, kind: int = 0, dashed: bool = False) -> None:
        """Straight lines from point to point."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self._add("path", f"line kind-{kind}" + " dashed" * dashed, d=path)

    def arrow(self, *points: Point, kind: int = 0, dashed: bool = False) -> None:
        """The same, with a head at the end."""
        (x0, y0), (x, y) = points[-2:]
        angle = math.atan2(y - y0, x - x0)
        neck = x - HEAD * math.cos(angle), y - HEAD * math.sin(angle)
        self.line(*points[:-1], neck, kind=kind, dashed=dashed)
        across = HEAD * 0.45 * math.sin(angle), -HEAD * 0.45 * math.cos(angle)
        corners = [(x, y), (neck[0] + across[0], neck[1] + across[1]),
                   (neck[0] - across[0], neck[1] - across[1])]
        self._add("polygon", f"head kind-{kind}",
                  points=" ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners))

    def brace(self, x0: float, x1: float, y: float, text: str, *, below: bool = True,
              size: float = SIZE) -> None:
        """A bracket under (or over) a stretch, with a text."""
        step = 6 if below else -6
        self.line((x0, y), (x0, y + step), (x1, y + step), (x1, y))
        self.text((x0 + x1) / 2, y + (20 if below else -11), text, "middle", muted=True,
                  size=size)

    def plus(self, x: float, y: float) -> None:
        """A circle in which two streams are added."""
        self._add("circle", "box kind-0", cx=x, cy=y, r=10)
        self.line((x - 5, y), (x + 5, y))
        self.line((x, y - 5), (x, y + 5))

    def svg(self) -> str:
        """The drawing as an SVG element, with its style and its words."""
        root = ElementTree.Element("svg", {
            "xmlns": NAMESPACE, "role": "img", "aria-label": self.words,
            "class": "gw-diagram", "width": f"{self.width + 2 * MARGIN:g}",
            "viewBox": f"{-MARGIN} {-MARGIN} {self.width + 2 * MARGIN:g} "
                       f"{self.height + 2 * MARGIN:g}"})
        style = ElementTree.SubElement(root, "style")
        style.text = files("autograder.diagrams").joinpath("diagram.css").read_text("utf-8")
        root.append(self._root)
        return ElementTree.tostring(root, encoding="unicode")

    def _add(self, tag: str, names: str, text: str = "", **attributes: float | str) -> None:
        written = {name: value if isinstance(value, str) else f"{value:g}"
                   for name, value in attributes.items()}
        ElementTree.SubElement(self._root, tag, {"class": names, **written}).text = text
