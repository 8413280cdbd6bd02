"""A figure for notebooks and pages: one piece of HTML, without network, kernel or other file.

It shows in JupyterLab, VS Code, Colab, nbconvert's HTML and the book, in light and in dark.
Where scripts or HTML do not run, its words remain. It holds no element ids, so any number of
figures, or one figure twice, may share a page.
"""

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files

from gearworks.viz.trace import FigureError, Trace

# of one figure's HTML: a chapter shows several, and its notebook keeps them all
MOST_BYTES = 100_000
# of what stands where HTML does not show: more would bury the cells below it
MOST_LINES = 12


class Figure:
    """What a figure function returns: a notebook shows its HTML, a terminal its first words.

    html: the whole figure. words: the same in plain text. Raises FigureError when the HTML is
    larger than `most_bytes`.

    >>> Figure("<p>One gear</p>", "One gear")
    One gear
    """

    def __init__(self, html: str, words: str, most_bytes: int = MOST_BYTES):
        size = len(html.encode("utf-8"))
        if size > most_bytes:
            raise FigureError("cannot draw this figure",
                              f"it takes {size:,} bytes, and {most_bytes:,} is the limit",
                              "show less at a time: fewer steps, fewer cells or a shorter text")
        self.html, self.words = html, words

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        lines = self.words.splitlines()
        if len(lines) <= MOST_LINES:
            return self.words
        first = lines[:MOST_LINES - 1]
        return "\n".join([*first, f"… {len(lines) - len(first)} more lines: print(_.words)"])


def player(traces: Trace | Sequence[Trace], title: str = "", choice: str = "Show") -> Figure:
    """A figure that replays a trace: buttons, a slider and the arrow keys go through its steps.

    traces: one, or several among which the reader chooses by their titles. title: above the
    figure; without it, the title of the first trace. choice: what stands before the list to
    choose from.
    Keys, where the figure has the focus: left and right for the step before and the next, Home
    and End for the first and the last, up and down from box to box.

    >>> from gearworks.viz import Cell, Lane, Step, Trace
    >>> player(Trace("Hi",
    ...              [Step("nothing yet"),
    ...               Step("a letter came", [Lane("word", [Cell("h", emphasis="new")])])]))
    Hi
    Step 1 of 2: nothing yet
    Step 2 of 2: a letter came
      word: h (new)
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise FigureError("cannot draw this figure", "it was given no trace",
                          "give a Trace, or a list of them")
    words = "\n\n".join(trace.in_words() for trace in traces)
    if title and (len(traces) > 1 or title != traces[0].title):
        words = f"{title}\n\n{words}"
    data = "[" + ",".join(trace.to_json() for trace in traces) + "]"
    return interactive("player", title or traces[0].title, data, words, choice)


def interactive(kind: str, title: str, data: str, words: str, choice: str = "",
                most_bytes: int = MOST_BYTES) -> Figure:
    """A figure that `<kind>.js` draws, in the style of `<kind>.css` where there is one.

    data: JSON, what the script draws from. words: the same as the picture, shown where no
    script runs and on request.
    choice: as for `player`. most_bytes: as for `Figure`.
    """
    # Escaped so that no text can end the element that holds the data.
    data = data.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    body = ('<details class="gw-words" open><summary>In words</summary>'
            f'<pre tabindex="0">{escape(words, quote=False)}</pre></details>'
            f'<script type="application/json" class="gw-data">{data}</script>')
    return Figure(framed(title, body, kind, choice), words, most_bytes)


def framed(title: str, body: str, kind: str = "", choice: str = "") -> str:
    """The HTML of a figure: its style, a title, the body and, for a kind, its script.
    `body` is HTML, `title` text.

    >>> framed("A & B", "<p>…</p>").count("A &amp; B")
    2
    """
    # JupyterLab leaves keys alone below data-lm-suppress-shortcuts, MathJax leaves dollars
    # alone below *_ignore.
    classes = "gw tex2jax_ignore mathjax_ignore" + (f" gw-{kind}" if kind else "")
    attributes = (f' data-lm-suppress-shortcuts="true" data-choice="{escape(choice)}"' if kind
                  else "")
    style, script = _resource("figure.css"), ""
    if kind:
        style += _resource(f"{kind}.css")
        script = (f'<script>(() => {{\n'
                  f'{_resource("elements.js")}{_resource(f"{kind}.js")}}})();</script>')
    return (f'<div class="{classes}" role="group" aria-label="{escape(title)}"{attributes}>'
            f'<style>{style}</style><p class="gw-title" dir="auto">{escape(title)}</p>'
            f'{body}{script}</div>')


@lru_cache
def _resource(name: str) -> str:
    file = files("gearworks.viz").joinpath(name)
    return (file.read_text(encoding="utf-8") if file.is_file() or not name.endswith(".css")
            else "")
