"""Sphinx extension: search results show the place that was found, from a disk, too.

Sphinx's own excerpts are fetched from the pages, which a browser does not allow where the pages
were opened from a disk, and begin with the words of the page's buttons. So the text of each
page lies beside it, by sections, as a script; the search page loads those of its results.
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx

FOLDER = "_static/search"
SCRIPT = "search_excerpts.js"
_UNREAD = re.compile(r"<(script|style|svg)\b.*?</\1>", re.DOTALL)
# between these, words belong to one sentence; elsewhere there is a gap
_INLINE = {"a", "abbr", "b", "bdi", "cite", "code", "dfn", "em", "i", "kbd", "mark", "s",
           "samp", "small", "span", "strong", "sub", "sup", "u", "var"}


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", write_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_text(app: Sphinx, pagename: str, templatename: str, context: dict,
               doctree: object) -> None:
    """Write what a page says; give the search page the script that shows it."""
    if pagename == "search":
        app.add_js_file(SCRIPT, loading_method="defer")
    if doctree is None or app.builder.format != "html":
        return
    path = Path(app.outdir) / FOLDER / f"{pagename}.js"
    path.parent.mkdir(parents=True, exist_ok=True)
    told = json.dumps(sections_of(context.get("body", "")), ensure_ascii=False)
    path.write_text(f"searchTexts[{json.dumps(pagename)}] = {told};\n", encoding="utf-8")


def sections_of(body: str) -> list[tuple[str, str]]:
    """A page's sections, in order: the id of each, and what it says before the next begins.

    >>> sections_of('<section id="a"><h1>One<a class="headerlink" href="#a">#</a></h1>'
    ...             '<p>is <b>bo</b>ld</p><p>and</p><section id="b"><pre>x  = 1</pre></section>'
    ...             '<script>no</script></section>')
    [('a', 'One is bold and'), ('b', 'x = 1')]
    """
    reader = _Sections()
    reader.feed(_UNREAD.sub(" ", body))
    return [(id, text) for id, parts in reader.sections
            if (text := " ".join("".join(parts).split()))]


class _Sections(HTMLParser):
    """Gathers text below the section that was opened last."""

    def __init__(self):
        super().__init__()
        self.sections: list[tuple[str, list[str]]] = [("", [])]
        self._in_link = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag == "section" and found.get("id"):
            self.sections.append((found["id"], []))
        self._in_link = self._in_link or "headerlink" in (found.get("class") or "").split()
        self._gap(tag)

    def handle_endtag(self, tag: str) -> None:
        self._in_link = self._in_link and tag != "a"
        self._gap(tag)

    def handle_data(self, data: str) -> None:
        if not self._in_link:
            self.sections[-1][1].append(data)

    def _gap(self, tag: str) -> None:
        if tag not in _INLINE:
            self.sections[-1][1].append(" ")
