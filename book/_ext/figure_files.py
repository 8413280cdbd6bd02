"""Sphinx extension: a large figure's data lies beside the page, and comes when it is wanted.

A notebook's figure is one piece of HTML. On a page, the data of a large one and its script go
to a file of their own, which the page loads when the reader scrolls to the figure or opens it.
It is a script, since a page that was opened from a disk may load no other kind of file. Without
scripts, and in print, the figure's words are there as ever.
"""

import gzip
import hashlib
import json
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

KEY = "gearworks_figures"
FOLDER = "_static/figures"
LARGE = 100_000                   # characters of data: more than any figure but the moving ones
_FIGURE = re.compile(
    r'<div class="gw (?P<attributes>[^>]*)>(?P<body>(?:(?!<div class="gw ).)*?)'
    r'<script type="application/json" class="gw-data">(?P<data>[^<]*)</script>'
    r"<script>(?P<script>.*?)</script></div>", re.DOTALL)

_STYLE = re.compile(r"(?<=>)<style>[^<]*</style>")

# Gives every figure on the page that waits for this data its data; the figure's script follows.
_FILE = """\
(() => {
  const data = %s;
  for (const root of document.querySelectorAll('[data-figure="%s"]:not([data-ready])')) {
    const holder = document.createElement("script");
    holder.type = "application/json";
    holder.className = "gw-data";
    holder.textContent = data;
    root.append(holder);
  }
})();
%s
"""

_LOADER = """\
(() => {
  const root = document.currentScript.parentElement, words = root.querySelector(".gw-words");
  const open = document.createElement("button");
  const load = () => {
    watch.disconnect();
    open.disabled = true;
    open.textContent = "Loading …";
    const script = document.createElement("script");
    script.src = root.dataset.source;
    script.addEventListener("load", () => open.remove());
    script.addEventListener("error", () => {
      open.disabled = false;
      open.textContent = "It could not be loaded. Try again";
    });
    root.append(script);
  };
  const watch = new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) load();
  });
  open.type = "button";
  open.className = "gw-button";
  open.textContent = `Open the moving picture (${root.dataset.size})`;
  open.addEventListener("click", load);
  words.before(open);
  words.open = false;
  addEventListener("beforeprint", () => { words.open = true; });
  if (!navigator.connection?.saveData) watch.observe(open);
})();"""


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_files, priority=400)       # before the archive
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def with_data_apart(page: str, docname: str, env: BuildEnvironment) -> str:
    """The HTML of a page's part, its large figures without their data; `env` keeps that."""
    def apart(figure: re.Match) -> str:
        if len(figure["data"]) < LARGE:
            return figure[0]
        name = hashlib.sha256((figure["data"] + figure["script"]).encode()).hexdigest()[:16]
        text = _FILE % (json.dumps(figure["data"]), name, figure["script"])
        env.metadata[docname].setdefault(KEY, {})[name] = text
        source = f"{'../' * docname.count('/')}{FOLDER}/{name}.js"
        size = f"{len(gzip.compress(text.encode())) / 1000:.0f} kB"
        return (f'<div class="gw {figure["attributes"]} data-figure="{name}" '
                f'data-source="{source}" data-size="{size}">{figure["body"]}'
                f"<script>{_LOADER}</script></div>")

    return _FIGURE.sub(apart, page)


def without_repeated_styles(page: str, seen: set[str]) -> str:
    """The HTML of a page's part without the figures' styles that the page has already.

    seen: of the page so far, and extended here. In a notebook, each figure stands alone.
    """
    def first(style: re.Match) -> str:
        known = style[0] in seen
        seen.add(style[0])
        return "" if known else style[0]

    return _STYLE.sub(first, page)


def write_files(app: Sphinx, exception: Exception | None) -> None:
    """Write what the pages load, and take away what none loads any more."""
    if exception is not None or app.builder.format != "html":
        return
    wanted = {f"{name}.js": text for page in app.env.metadata.values()
              for name, text in page.get(KEY, {}).items()}
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.js"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        if not (folder / name).is_file():
            (folder / name).write_text(text, encoding="utf-8")
