"""The book: it builds, shows the right edition, gives no solution away, asks no other host.

Of all chapters with --long: about 70 s on two free cores when their outputs are cached; a
chapter that changed runs first, in up to 3 minutes. The browser tests need Playwright and a
Chromium or Chrome of the system. Without them they are skipped, except where `CI` is set: there
they fail.
"""

import ast
import base64
import doctest
import functools
import gzip
import html
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import Counter, defaultdict
from datetime import date
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree

import nbformat
import pytest
import yaml

from autograder.chapters import editions
from autograder.chapters.chapter import (ChapterError, chapter_paths, python_of,
                                         read_chapter)
from autograder.checking import exercises
from autograder.variants.mutation import accepted_of, mutants_of
from gearworks import __version__
from gearworks.viz import engine_map
from gearworks.viz.figure import interactive

REPOSITORY = Path(__file__).resolve().parents[2]
BOOK = REPOSITORY / "book"
CHAPTERS = [path.stem for path in chapter_paths(BOOK / "chapters")]
REBUILD_SECONDS = 30                            # of processor time, with nothing changed

sys.path.append(str(BOOK / "_ext"))
import bigram_search        # noqa: E402
import chapter_editions     # noqa: E402
import edition_cache        # noqa: E402
import figure_files         # noqa: E402
import inline_plots         # noqa: E402
import machine_watch        # noqa: E402
import search_excerpts      # noqa: E402


# Of all chapters, which run before they become pages; the small course below is for every run.
whole_book = pytest.mark.long


# --- the whole book ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Where the course's own book was built, by the command of the front door,
    with warnings as errors."""
    folder = tmp_path_factory.mktemp("book")
    built = build(REPOSITORY, folder)
    assert built.returncode == 0, built.stdout[-6000:]
    return folder


@pytest.fixture(scope="module")
def site(output):
    return output / "_build" / "html"


def pages_of(site):
    return [path for folder in ("book", "chapters")
            for path in sorted((site / folder).glob("*.html"))]


def build(root, folder, **environment):
    """The finished command. Its output is in `stdout`."""
    return subprocess.run([sys.executable, "course.py", "book", "--path-output", str(folder),
                           "-W", "--keep-going"], cwd=root,
                          env={**os.environ, "GEARWORKS_SETUP": "off", **environment},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")


@whole_book
def test_every_chapter_is_in_the_book_and_every_page_in_its_list(site):
    toc = yaml.safe_load((REPOSITORY / "_toc.yml").read_text(encoding="utf-8"))
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    assert ([file for file in files if file.startswith("chapters/")]
            == [f"chapters/{stem}" for stem in CHAPTERS])
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in pages_of(site)}
    assert pages == {toc["root"], *files}
    assert ({f"book/{path.stem}" for path in BOOK.glob("*.md")}
            == {page for page in pages if page.startswith("book/")})


@whole_book
def test_nothing_changed_is_quick_and_runs_nothing(output):
    before = os.times()
    again = build(REPOSITORY, output)
    after = os.times()
    assert (again.returncode == 0 and "0 added, 0 changed, 0 removed" in again.stdout
            and "running" not in again.stdout)
    assert sum(after[2:4]) - sum(before[2:4]) < REBUILD_SECONDS


@whole_book
@pytest.mark.parametrize("stem", CHAPTERS)
def test_a_page_shows_stubs_and_the_outputs_of_the_reference(site, stem):
    chapter = read_chapter(BOOK / "chapters" / f"{stem}.md")
    page = text_of((site / "chapters" / f"{stem}.html").read_text(encoding="utf-8"))
    for exercise in chapter.exercises:
        points = editions.exercise_points(exercise)
        assert f"{points:g} of {points:g} points" in page, exercise.name
        if not exercise.exhibit:
            assert f'raise NotImplementedError("{exercise.components[0]}' in page
    assert "%pip" not in page and "Installs the course" not in page


@whole_book
def test_no_solution_is_anywhere_below_the_site(site):
    """Not in pages, sources, the search index or notebooks:
    as text, as JSON, with tags and escapes taken away."""
    chapters = [read_chapter(BOOK / "chapters" / f"{stem}.md") for stem in CHAPTERS]
    # A line that several chapters show, such as `for _ in range(count):`, is an idiom.
    shown_in = Counter()
    for chapter in chapters:
        shown_in.update({line.strip() for cell in chapter.cells
                         for line in cell.source.splitlines()})
    secret = {line for chapter in chapters for line in editions.solution_lines(chapter)
              if shown_in[line] < 2}
    assert len(secret) > 20 * len(CHAPTERS)
    for path in site.parent.rglob("*"):          # and beside it, where Sphinx keeps notebooks
        if (path.suffix
            not in (".html", ".txt", ".md", ".ipynb", ".py", ".js", ".json", ".inv", "")):
            continue
        if path.is_file() and "_static" not in path.parts and ".doctrees" not in path.parts:
            shown = {line.strip() for line in readable(path).splitlines()} & secret
            assert not shown, f"{path.relative_to(site.parent)} shows {shown}"


def test_the_search_for_solutions_would_find_one(tmp_path):
    """In a highlighted page, in a notebook,
    and in an index where it is one of many words on a line."""
    line = 'history = [token for token in ids if token != "<eos>"]'
    marked = "".join(f'<span class="n">{html.escape(part)}</span>'
                     for part in re.split(r"(\W)", line))
    (tmp_path / "page.html").write_text(f"<pre>def f():\n    {marked}\n</pre>",
                                        encoding="utf-8")
    cell = nbformat.v4.new_code_cell(f"def f():\n    {line}\n")
    (tmp_path / "n.ipynb").write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])),
                                      encoding="utf-8")
    for name in ("page.html", "n.ipynb"):
        assert line in {each.strip() for each in readable(tmp_path / name).splitlines()}


def text_of(page):
    """What a page says, with its tags and escapes taken away."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def readable(path):
    text = path.read_bytes().decode("utf-8", errors="replace")
    if path.suffix in (".ipynb", ".json"):
        return "\n".join(strings_of(json.loads(text)))
    return f"{text}\n{text_of(text)}"


def strings_of(value):
    if isinstance(value, str):
        yield from (value, text_of(value))
    elif isinstance(value, list):
        yield "".join(part for part in value if isinstance(part, str))
        for part in value:
            yield from strings_of(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings_of(part)


# --- buttons, links, pictures -----------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes)."""

    def __init__(self, path):
        super().__init__()
        self.found = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, *tags):
        return [attributes for tag, attributes in self.found if tag in tags]


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Elements(path) for path in pages_of(site)}


@whole_book
@pytest.mark.parametrize("stem", CHAPTERS)
def test_colab_and_download_lead_to_the_learner_notebook(site, pages, stem):
    links = [link.get("href", "") for link in pages[f"chapters/{stem}.html"].all("a")]
    repository = editions.homepage(REPOSITORY).removeprefix("https://github.com/")
    colab = [link for link in links if link.startswith("https://colab.research.google.com/")]
    assert colab == [f"https://colab.research.google.com/github/{repository}/blob/main/"
                     f"chapters/{stem}.ipynb"]
    [download] = [link for link in links if link.endswith(".ipynb") and "_sources" in link]
    learner = REPOSITORY / "chapters" / f"{stem}.ipynb"
    learner = (REPOSITORY / "chapters" / f"{stem}.ipynb").read_bytes()
    assert (site / "chapters" / download).resolve().read_bytes() == learner


def test_the_address_of_the_repository_is_the_project_s():
    config = yaml.safe_load((REPOSITORY / "_config.yml").read_text(encoding="utf-8"))
    assert config["repository"]["url"] == editions.homepage(REPOSITORY)


@whole_book
def test_local_links_have_targets(site, pages):
    for name, page in pages.items():
        for link in page.all("a"):
            address = urlparse(link.get("href", ""))
            if address.scheme or address.netloc or not address.path:
                continue
            assert (site / Path(name).parent
                    / unquote(address.path)).exists(), f"{name}: {link['href']}"


@whole_book
def test_pictures_and_plots_have_descriptions(pages):
    for name, page in pages.items():
        assert page.all("img") or not name.startswith("chapters"), name
        for picture in page.all("img"):
            is_logo = "logo__image" in picture.get("class", "")       # beside the course's name
            assert picture.get("alt") or is_logo, f"{name}: {picture.get('src')}"
        for drawing in page.all("svg"):
            assert drawing.get("aria-label") or drawing.get("aria-hidden") == "true", name


@whole_book
def test_pages_load_nothing_from_other_hosts(pages):
    for name, page in pages.items():
        for element in page.all("script", "img", "iframe", "source", "video", "audio", "embed"):
            assert not urlparse(element.get("src") or "").netloc, f"{name}: {element['src']}"
        for element in page.all("link"):
            assert not urlparse(element.get("href", "")).netloc, f"{name}: {element['href']}"


# --- the book in a browser --------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site):
    """Where the book is served."""
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0),
                             functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def show(browser, address):
    """A function that opens a page of the book;
    at the end, nothing was asked of another host and no script failed."""
    asked, contexts = [], []

    def open_page(name, width=1280, **settings):
        context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error {error}"))
        page.goto(address + name)
        page.wait_for_load_state("networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@whole_book
def test_no_page_asks_another_host(show, pages):
    for name in pages:
        show(name).close()


@whole_book
def test_there_is_one_search_box_and_it_finds_words(show):
    page = show("book/intro.html")
    ways_in = page.locator("input[type=search]:visible, .search-button-field:visible, "
                           ".search-button:visible")
    assert ways_in.count() == 1
    ways_in.click()
    page.locator("input[type=search]:visible").fill("roofline")
    found = show("search.html?q=restaurant")
    found.locator("#search-results li").first.wait_for()
    assert "01_overview" in found.locator("#search-results a").first.get_attribute("href")
    assert (found.evaluate("splitQuery('llama 推理引擎 go')")
            == ["llama", "推理", "理引", "引擎", "go"])


@whole_book
@pytest.mark.parametrize(
    "name", ["book/intro", "book/instructors", *(f"chapters/{stem}" for stem in CHAPTERS)])
def test_pages_fit_a_phone(show, name):
    page = show(f"{name}.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# The blocks of a page that are narrower than their lines, and the cells narrower than
# 96 columns: what they hold, and by how much.
TOO_NARROW = """() => [...document.querySelectorAll('.bd-article pre')].map((block) => {
  const columns = document.createElement('span');
  columns.style.cssText = 'position: absolute; visibility: hidden; white-space: pre';
  columns.textContent = block.closest('.cell') && block.innerText ? '0'.repeat(96) : '';
  block.append(columns);
  const style = getComputedStyle(block);
  const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  const over = Math.max(columns.getBoundingClientRect().width + padding - block.clientWidth,
                        block.scrollWidth - block.clientWidth);
  columns.remove();
  return [block.innerText.slice(0, 60), over];
}).filter(([text, over]) => text && over > 0)"""


@whole_book
def test_96_columns_fit_everywhere(show, pages):
    """No cell scrolls sideways at 1280 px, and none is cut on paper: A4, 1 cm of margin."""
    for name in pages:
        page = show(name)
        for media, width in (("screen", 1280), ("print", 718)):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(media=media)
            assert page.evaluate(TOO_NARROW) == [], f"{name}, {media}"
        page.close()


FIRST_LOAD = 700_000                 # bytes, gzipped
ICONS = """() => [...document.querySelectorAll('.fas, .fab, .fa-solid, .fa-brands')].filter(
  (icon) => !getComputedStyle(icon, '::before').maskImage.startsWith('url("data:image/svg')
).map((icon) => icon.className)"""


@whole_book
def test_first_load_is_small_and_icons_are_drawn(browser, address, pages):
    """All that a page asks for before anybody scrolls, as a server sends it."""
    sizes = {}
    for name in pages:
        page, answers = browser.new_page(viewport={"width": 1280, "height": 800}), []
        page.on("response", lambda answer, seen=answers: seen.append(answer))
        page.goto(address + name)
        page.wait_for_load_state("networkidle")
        bodies = {answer.url: answer.body() for answer in answers if answer.ok
                  and figure_files.FOLDER not in answer.url}
        sizes[name] = sum(min(len(body), len(gzip.compress(body))) for body in bodies.values())
        assert page.evaluate(ICONS) == [], name
        page.close()
    assert max(sizes.values()) <= FIRST_LOAD, sizes


@whole_book
def test_a_search_shows_the_place_from_a_disk_too(show, site, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    for address_of in (lambda name: (site / name).as_uri(), None):
        page = context.new_page() if address_of else None
        if page:
            page.goto(f"{address_of('search.html')}?q=top-p")
        else:
            page = show("search.html?q=top-p")
        page.locator("#search-results li .context").first.wait_for()
        page.wait_for_function("document.querySelectorAll('#search-results li').length == "
                               "document.querySelectorAll('#search-results .context').length")
        found = page.locator("#search-results li").evaluate_all(
            "(items) => items.map((item) => [item.querySelector('a').getAttribute('href'),"
            " item.querySelector('.context').textContent])")
        assert not [text for _, text in found if "Open issue" in text or "Repository" in text]
        link, text = next((link, text) for link, text in found if "05_decoding" in link)
        assert "top-p" in text.lower()
        anchor = link.partition("#")[2]
        chapter = (site / "chapters" / "05_decoding.html").read_text(encoding="utf-8")
        assert f'<section id="{anchor}">' in chapter or f'id="{anchor}"' in chapter
        marked = page.locator("#search-results .context .highlighted").all_inner_texts()
        assert marked and all(re.match("(?i)top|p$", each) for each in marked)
    context.close()


FEW_PAGES = ("book/intro.html", "book/your_engine.html", "book/instructors.html",
             "chapters/01_overview.html", "search.html")


@whole_book
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_barriers(show, barriers, pages, scheme, width, request):
    """axe-core finds nothing of WCAG A and AA, with every figure loaded and every fold open."""
    every = [*pages, "search.html", "genindex.html"]
    found = {}
    for name in every if request.config.getoption("--every-page") else FEW_PAGES:
        page = show(name, width=width, color_scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
        page.evaluate("""async () => {
          for (let y = 0; y < document.body.scrollHeight; y += 700) {
            scrollTo(0, y);
            await new Promise((done) => setTimeout(done, 20));
          }
          scrollTo(0, 0);
        }""")
        page.wait_for_load_state("networkidle")
        found[name] = barriers(page)
        page.close()
    assert not any(found.values()), json.dumps(found, indent=1)[:6000]


@whole_book
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_take_the_ink_of_the_page(show, scheme):
    page = show("chapters/01_overview.html", color_scheme=scheme)
    ink = page.evaluate("getComputedStyle(document.querySelector('.plot svg text')).fill")
    assert ink == page.evaluate("getComputedStyle(document.querySelector('article p')).color")
    paper = page.evaluate(
        "getComputedStyle(document.querySelector('.plot').parentElement).backgroundColor")
    assert paper == "rgba(0, 0, 0, 0)"


@whole_book
def test_the_keyboard_reaches_the_text(show):
    page = show("book/intro.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to main content"


# --- the swap ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A course of one small chapter, with a plot and with links, in a folder of its own."""
    root = tmp_path_factory.mktemp("course")
    for name in ("course.py", "_config.yml", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, root)
    for name in ("_ext", "_static", "_templates"):
        shutil.copytree(BOOK / name, root / "book" / name,
                        ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(__file__).parent / "data", root / "autograder" / "tests" / "data")
    (root / "book" / "chapters").mkdir()
    text = (Path(__file__).parent / "data" / "98_small.md").read_text(encoding="utf-8")
    (root / "book" / "chapters"
     / "98_small.md").write_text(f"{text}\n\n{PLOT}", encoding="utf-8")
    (root / "chapters").mkdir()
    chapter = read_chapter(root / "book" / "chapters" / "98_small.md")
    learner = editions.to_text(editions.learner_edition(chapter, root))
    (root / "chapters" / "98_small.ipynb").write_text(learner, encoding="utf-8")
    (root / "book" / "intro.md").write_text(
        "# Small\n\n[The chapter](../chapters/98_small.ipynb)\n", encoding="utf-8")
    (root / "book" / "references.bib").write_text("", encoding="utf-8")
    toc = {"format": "jb-book", "root": "book/intro",
           "chapters": [{"file": "chapters/98_small"}]}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    return root


PLOT = """\
```{code-cell} python
---
mystnb:
  image:
    alt: A line that rises
---
import matplotlib.pyplot as plt

print("a number to change: 1")
plt.plot([1, 2], [3, 4], color="black")
plt.title("steps")
plt.show()
```

Next: [a chapter that is not written yet](99_more.ipynb).
"""


def test_a_chapter_runs_when_it_changed_and_only_then(small, tmp_path):
    def page():
        built = build(small, tmp_path / "out", GEARWORKS_HOME=str(tmp_path / "home"))
        assert built.returncode == 0, built.stdout[-6000:]
        html = tmp_path / "out" / "_build" / "html" / "chapters" / "98_small.html"
        return "running 98_small" in built.stdout, html.read_text(encoding="utf-8")

    ran, first = page()
    assert (f"Gearworks {__version__}" in text_of(first)
            and f"Last updated on {date.today():%Y-%m-%d}" in " ".join(text_of(first).split()))
    with zipfile.ZipFile(tmp_path / "out" / "_build"
                         / f"gearworks-book-{__version__}.zip") as archive:
        assert archive.testzip() is None
        names = {name.partition("/")[2] for name in archive.namelist()}
        assert {"index.html", "chapters/98_small.html", "_static/book.css"} <= names
        assert not [name for name in names if name.endswith((".map", ".woff2", ".ttf"))
                    and "mathjax" not in name]
    assert (ran and "a number to change: 1" in text_of(first)
            and 'aria-label="A line that rises"' in first)
    assert "a chapter that is not written yet" in text_of(first) and "99_more" not in first

    source = small / "book" / "chapters" / "98_small.md"
    source.write_text(source.read_text(encoding="utf-8").replace("change: 1", "change: 2"),
                      encoding="utf-8")
    ran, second = page()             # the learner notebook, which Sphinx looks at, is as it was
    assert ran and "a number to change: 2" in text_of(second)
    source.write_text(source.read_text(encoding="utf-8").replace("change: 2", "change: 1"),
                      encoding="utf-8")
    ran, third = page()
    assert not ran and "a number to change: 1" in text_of(third)

    right = source.read_text(encoding="utf-8")
    source.write_text(f"{right}\n\n```{{code-cell}} python\n1 / 0\n```\n", encoding="utf-8")
    failed = build(small, tmp_path / "out", GEARWORKS_HOME=str(tmp_path / "home"))
    source.write_text(right, encoding="utf-8")
    assert failed.returncode != 0 and "98_small.md does not run" in failed.stdout
    assert not list((tmp_path / "home" / "book").glob("*.new"))


def test_who_cites_and_who_publishes_is_told_what_is_so():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    config = yaml.safe_load((REPOSITORY / "_config.yml").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert f"This is version {__version__}." in (BOOK / "intro.md").read_text(encoding="utf-8")
    assert citation["repository-code"] == config["repository"]["url"]
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows"
                               / "pages.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ["python course.py book --publish"]
    paths = [step["with"]["path"] for step in steps if "artifact" in step.get("uses", "")]
    assert paths == ["_build/html", "_build/gearworks-book-*.zip"]


def test_links_are_asked_and_a_dead_one_is_named(small, tmp_path):
    class Answers(SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/there" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    root = tmp_path / "course"
    shutil.copytree(small, root)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        intro = root / "book" / "intro.md"

        def ask(*links):
            intro.write_text("# Small\n\n" + "\n\n".join(f"[x]({link})" for link in links),
                             encoding="utf-8")
            (root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n",
                                           encoding="utf-8")
            text = (root / "course.py").read_text(encoding="utf-8")
            (root / "course.py").write_text(re.sub('WORLD = ".*?"', f'WORLD = "{here}"', text),
                                            encoding="utf-8")
            return subprocess.run(
                [sys.executable, "course.py", "links", "--path-output", str(tmp_path / "out")],
                cwd=root, env={**os.environ, "GEARWORKS_SETUP": "off", "no_proxy": "127.0.0.1"},
                capture_output=True, encoding="utf-8", errors="replace")
        good = ask(f"{here}/there", "https://github.com/gearworks-course/gearworks/no")
        assert good.returncode == 0, good.stdout[-3000:] + good.stderr[-3000:]
        bad = ask(f"{here}/there", f"{here}/gone")
        assert bad.returncode != 0 and f"{here}/gone" in bad.stdout + bad.stderr
        server.shutdown()
    skipped = ask("http://127.0.0.1:9/gone")                  # nobody answers any more
    assert skipped.returncode == 0 and "were not checked" in skipped.stdout


@pytest.fixture
def packages(tmp_path):
    """Two packages on the disk: name -> folder."""
    files = {"gears/__init__.py": "",
             "gears/loop.py": "from gears import teeth\nimport numpy.linalg\n",
             "gears/teeth.py": "def f():\n    from gears.show.draw import line\n",
             "gears/alone.py": "import torch\n", "gears/show/__init__.py": "",
             "gears/show/draw.py": "import json as j", "gears/show/style.css": "p {}",
             "checks/__init__.py": "import gears.alone"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {"gears": tmp_path / "gears", "checks": tmp_path / "checks"}


def test_what_a_chapter_imports_counts_and_what_it_does_not_import_does_not(packages):
    files, others = edition_cache.imported_files(["from gears.loop import run\nimport re"],
                                                 packages)
    names = {path.relative_to(packages["gears"]).as_posix() for path in files}
    assert names == {"__init__.py", "loop.py", "teeth.py", "show/__init__.py", "show/draw.py",
                     "show/style.css"}
    assert others == {"re", "numpy", "json"}
    files, others = edition_cache.imported_files(["import checks"], packages)
    assert {path.name for path in files} == {"__init__.py", "alone.py"} and others == {"torch"}


def test_the_key_covers_the_model_the_checks_and_the_figures():
    chapter = read_chapter(BOOK / "chapters" / "01_overview.md")
    packages = {name: Path(importlib.util.find_spec(name).origin).parent
                for name in edition_cache.PACKAGES}
    cells = [cell.source for cell in chapter.cells if cell.kind == "code"]
    files, _ = edition_cache.imported_files(cells, packages)
    names = {path.relative_to(packages["gearworks"]).as_posix() for path in files
             if path.is_relative_to(packages["gearworks"])}
    assert {"hub/models.py", "viz/player.js", "viz/figure.css", "model.py",
            "config/model_config.py", "config/__init__.py", "accounting.py"} <= names
    assert edition_cache.run_key(chapter) == edition_cache.run_key(chapter)


def test_text_does_not_run_a_chapter_again_and_code_does(small, tmp_path):
    """Nor do a hint, the minutes or the words for a plot: the page has them all the same."""
    source = (small / "book" / "chapters" / "98_small.md").read_text(encoding="utf-8")
    path = tmp_path / "98_small.md"

    def key(*change):
        assert not change or change[0] in source
        path.write_text(source.replace(*change) if change else source, encoding="utf-8")
        return edition_cache.run_key(read_chapter(path))
    heading = next(line for line in source.splitlines() if line.startswith("# "))
    minutes = re.search(r"minutes: \d+", source)[0]
    code = "plt.show()"
    assert key() == key(heading, "# Another title") == key(minutes, "minutes: 41")
    assert key() == key("alt: A line that rises", "alt: A line that falls")
    assert key() != key(code, f"plt.plot([1])\n{code}")


def test_links_to_chapters_that_are_not_there_become_words():
    text = "[a](01_overview.ipynb#x), [b *c*](77_x.ipynb), [d](../book/setup.md)"
    left = chapter_editions.without_dead_links(text, {"chapters/01_overview"})
    assert left == "[a](01_overview.ipynb#x), b *c*, [d](../book/setup.md)"


# --- plots ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def svg():
    """A plot as matplotlib draws it under the settings of the book."""
    import matplotlib
    import matplotlib.pyplot as plt
    with matplotlib.rc_context(inline_plots._SETTINGS):
        figure, axes = plt.subplots(figsize=(4, 3))
        axes.plot([1, 2], [3, 4], label="a & b")
        axes.set(title='<"x">')
        axes.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg")
        plt.close(figure)
    return file.getvalue()


def test_a_plot_becomes_a_part_of_the_page(svg):
    one, two = (inline_plots.inline_svg(svg, 'rises, "steeply" & on', prefix)
                for prefix in ("p1-", "p2-"))
    for text in (one, two):
        drawing = ElementTree.fromstring(text)[0]
        assert (drawing.get("aria-label") == 'rises, "steeply" & on'
                and drawing.get("width") is None)
        assert ("#000000" not in text and "<style" not in text and "<metadata" not in text
                and "DejaVu" not in text)
        ids = re.findall(r'\bid="([^"]+)"', text)
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
        assert used and set(used) <= set(ids)
    assert not set(re.findall(r'\bid="[^"]+"', one)) & set(re.findall(r'\bid="[^"]+"', two))
    assert one.replace("p1-", "p2-") == two


def test_a_heat_map_is_a_tenth_of_its_bytes(svg):
    import numpy as np
    from PIL import Image
    numbers = np.random.default_rng(0).integers(0, 255, (90, 90, 3), np.uint8)

    def with_picture(image):
        file = io.BytesIO()
        image.save(file, "PNG")
        address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return svg.replace("<defs", f'<image xlink:href="{address}"/><defs', 1)
    smooth = Image.fromarray(numbers).resize((300, 300), Image.Resampling.BICUBIC)
    before = with_picture(smooth)
    after = inline_plots.inline_svg(before, "A map", "p1-")
    [data] = re.findall(r"data:image/webp;base64,([^\"]+)", after)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"), float)
    assert len(after) < len(before) / 4
    assert np.abs(shown - np.asarray(smooth, float)).mean() < 12
    small = with_picture(Image.fromarray(numbers[:9, :9]))
    assert "image/png" in inline_plots.inline_svg(small, "A map", "p1-")


def test_a_plot_without_a_description_is_refused_before_anything_runs(small, tmp_path):
    text = (small / "book" / "chapters" / "98_small.md").read_text(encoding="utf-8")
    path = tmp_path / "98_small.md"
    path.write_text(text.replace("    alt: A line that rises", "    width: 90%"),
                    encoding="utf-8")
    chapter = read_chapter(path)
    with pytest.raises(ChapterError,
                       match=r"98_small.md, line \d+: a plot without a description"):
        edition_cache.executed_edition(chapter, "key", small, tmp_path / "cache",
                                       lambda done, total: pytest.fail("it runs"))


# --- large figures ----------------------------------------------------------------------------


SCRIPT = """\
for (const root of document.querySelectorAll(".gw-large:not([data-ready])")) {
  const data = root.querySelector(".gw-data");
  if (!data) continue;
  root.dataset.ready = "";
  root.querySelector(".gw-words").before(JSON.parse(data.textContent)[0]);
}"""


def figure_of(title, size):
    data = json.dumps([f"{title} is \\ drawn", "x" * size]).replace("<", r"\u003c")
    return (f'<div class="gw gw-large" role="group" aria-label="{title}"><p>{title}</p>'
            f'<details class="gw-words" open><summary>In words</summary><pre>of {title}</pre>'
            f'</details><script type="application/json" class="gw-data">{data}</script>'
            f"<script>{SCRIPT}</script></div>")


@pytest.fixture
def page_with_figures(tmp_path):
    """A page below chapters/ with a small figure and two large ones, far down, and its files.
    """
    small, one, two = (figure_of(title, size) for title, size in (
        ("Small", 100), ("One", 150_000), ("Two", 140_000)))
    env = SimpleNamespace(metadata=defaultdict(dict))
    page = figure_files.with_data_apart(f"<p>{small}</p>{one}<hr>{two}", "chapters/x", env)
    site = tmp_path / "site"
    (site / "chapters").mkdir(parents=True)
    app = SimpleNamespace(env=env, outdir=site, builder=SimpleNamespace(format="html"))
    stale = site / "_static" / "figures" / "0123.js"
    stale.parent.mkdir(parents=True)
    stale.write_text("old", encoding="utf-8")
    figure_files.write_files(app, None)
    assert not stale.exists()
    path = site / "chapters" / "x.html"
    path.write_text("<!doctype html><html lang='en'><body>" + page.replace(
        "<hr>", "<div style='height: 5000px'></div>").replace(
        "<p>Small", "<p style='height: 3000px'>Small"), encoding="utf-8")
    return path


def test_a_large_figure_s_data_lies_beside_the_page(page_with_figures):
    page = page_with_figures.read_text(encoding="utf-8")
    assert len(page) < 8_000 and page.count('class="gw-data"') == 1
    assert all(f"<pre>of {title}</pre>" in page for title in ("Small", "One", "Two"))
    sources = re.findall(r'data-source="([^"]+)"', page)
    files = [(page_with_figures.parent / source).resolve() for source in sources]
    assert len(files) == 2 and all(path.stat().st_size > 130_000 for path in files)
    assert {path.parent for path in files} == {page_with_figures.parents[1].resolve()
                                               / "_static" / "figures"}


def test_the_moving_picture_is_such_a_figure_and_others_are_not():
    env = SimpleNamespace(metadata=defaultdict(dict))
    movie = interactive("movie", "Moves", json.dumps({"x": "y" * 120_000}),
                        "In words: it moves", most_bytes=300_000).html
    page = figure_files.with_data_apart(movie, "book/intro", env)
    assert 'data-source="../_static/figures/' in page and 'class="gw-data"' not in page
    assert "In words: it moves" in page and len(page) < len(movie) - 120_000
    [text] = env.metadata["book/intro"][figure_files.KEY].values()
    assert 'startAll("movie", start)' in text and "y" * 120_000 in text
    still = engine_map().html
    assert figure_files.with_data_apart(still, "book/intro", env) == still


def test_a_page_has_each_style_once():
    seen = set()
    parts = [figure_of(title, 100).replace("<p>", "<style>.gw { color: red }</style><p>")
             for title in ("One", "Two")]
    first, second = (figure_files.without_repeated_styles(part, seen) for part in parts)
    assert first == parts[0] and "<style>" not in second and "<p>Two</p>" in second
    other = parts[0].replace("red", "blue")
    assert figure_files.without_repeated_styles(other, seen) == other


def test_it_comes_when_the_reader_does(browser, page_with_figures):
    """From a disk, as from a server: by scrolling, or by the button where data is dear."""
    page = browser.new_page(viewport={"width": 800, "height": 600})
    asked = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.goto(page_with_figures.as_uri())
    assert page.get_by_text("Small is \\ drawn").count() == 1
    page.wait_for_timeout(300)
    assert asked == ["x.html"]
    for title in ("One", "Two"):
        figure = page.get_by_role("group", name=title)
        assert not figure.locator("pre").is_visible()
        figure.scroll_into_view_if_needed()
        figure.get_by_text(f"{title} is \\ drawn").wait_for()
        assert figure.get_by_role("button").count() == 0
    assert len(asked) == 3
    page.close()

    page = browser.new_page()
    page.add_init_script("navigator.__proto__.__defineGetter__('connection', "
                         "() => ({ saveData: true }))")
    page.goto(page_with_figures.as_uri())
    figure = page.get_by_role("group", name="One")
    figure.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    assert figure.get_by_text("One is").count() == 0
    figure.get_by_role("button", name=re.compile(r"Open the moving picture \(\d+ kB\)")).click()
    figure.get_by_text("One is \\ drawn").wait_for()
    page.close()


def test_a_figure_that_does_not_come_says_so_and_keeps_its_words(browser, page_with_figures):
    for path in (page_with_figures.parents[1] / "_static" / "figures").iterdir():
        path.unlink()
    page = browser.new_page()
    page.goto(page_with_figures.as_uri())
    figure = page.get_by_role("group", name="One")
    figure.scroll_into_view_if_needed()
    figure.get_by_role("button", name="It could not be loaded. Try again").wait_for()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert figure.locator("pre").is_visible()
    page.close()


@pytest.mark.parametrize("module", [bigram_search, chapter_editions, inline_plots,
                                    machine_watch, search_excerpts])
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


# --- what the pages say -----------------------------------------------------------------------


def test_chinese_is_indexed_by_characters_and_pairs():
    split = bigram_search.BigramSearch({}).split
    assert split("llama推理 train_bpe") == ["llama", "推", "理", "推理", "train_bpe"]
    assert split("ひらがな")[-3:] == ["ひら", "らが", "がな"]


@pytest.mark.parametrize("path", sorted((BOOK / "chapters").glob("*.md")),
                         ids=lambda path: path.stem)
def test_a_chapter_asks_five_questions_and_folds_each_answer_by_itself(path):
    text = path.read_text(encoding="utf-8")
    quiz = text.partition("### Questions to check yourself\n")[2].partition("\n## ")[0]
    parts = re.findall(r"<details><summary>(\d)\. (.+?)</summary>\n\n(.+?)\n\n</details>", quiz,
                       re.DOTALL)
    assert [int(number) for number, _, _ in parts] == [*range(1, len(parts) + 1)]
    assert len(parts) >= 5 and quiz.count("<details>") == len(parts)
    assert all(question[-1] in ".?" and len(answer) > 15 for _, question, answer in parts)


def test_the_kill_matrix_is_of_these_checks():
    """And the gate in test_kill_matrix.py holds that it is true."""
    rows = json.loads((BOOK / "kill_matrix.json").read_text(encoding="utf-8"))["exercises"]
    assert [row["exercise"]
            for row in rows] == exercises(), "autograder mutants --json > book/kill_matrix.json"
    for row in rows:
        name = row["exercise"]
        assert set(row["killed"]) == {f"{mutant.component}:{mutant.name}"
                                      for mutant in mutants_of(name)}, name
        assert set(row["accepted"]) == {version.name for version in accepted_of(name)}, name
        assert not row["complaints"] and not any(row["accepted"].values()), name


def test_commands_on_the_pages_exist():
    """In the blocks of code of setup and the instructors' guide."""
    from nbgrader.apps.nbgraderapp import NbGraderApp

    from autograder.cli import _parser as autograder_parser
    from gearworks.cli import commands as cli
    course = runpy.run_path(str(REPOSITORY / "course.py"))
    known = {"course.py": set(course["COMMANDS"]),
             "autograder": commands_of(autograder_parser()),
             "gearworks": commands_of(cli._parser()),
             "nbgrader": set(NbGraderApp().subcommands)}
    count = 0
    for page in ("setup.md", "instructors.md", "intro.md", "your_engine.md"):
        for block in re.findall(r"^ *```bash\n(.*?)^ *```",
                                (BOOK / page).read_text(encoding="utf-8"), re.M | re.S):
            for program, command in re.findall(
                r"^(?:python |py )?(course\.py|autograder|gearworks|nbgrader) (\w+)", block,
                re.M):
                count += 1
                assert command in known[program], f"{page}: {program} {command}"
    assert count >= 8


def commands_of(parser):
    [choices] = [action.choices for action in parser._actions
                 if isinstance(action.choices, dict)]
    return set(choices)


def test_every_change_says_whether_a_grade_can_change():
    text = (BOOK / "changelog.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| change \| can a grade change\? \|\n\|[-|]+\n((?:\|.*\n)+)", text,
                        re.M)
    grades = [row.rpartition(" | ")[2] for table in tables for row in table.splitlines()]
    assert len(tables) == len(re.findall(r"^## \d", text, re.M)) and len(grades) > 20
    assert all(re.match(r"(no|yes|new)\b", grade) for grade in grades), grades


def test_glossary_and_references_are_in_order():
    terms = re.findall(r"^(\w[^\n]*)\n    \w",
                       (BOOK / "glossary.md").read_text(encoding="utf-8"), re.M)
    assert len(terms) > 50 and len(set(terms)) == len(terms)
    keys = re.findall(r"^@\w+{(\w+),", (BOOK / "references.bib").read_text(encoding="utf-8"),
                      re.M)
    shelves = set(re.findall(r'keywords % "(\w+)"',
                             (BOOK / "references.md").read_text(encoding="utf-8")))
    assert len(set(keys)) == len(keys)
    assert (set(re.findall(r"keywords = {(\w+)}",
                           (BOOK / "references.bib").read_text(encoding="utf-8"))) == shelves)


# --- measurements -----------------------------------------------------------------------------


class Clocks:
    """A watch's surroundings: memory that is read at given speeds, processors and a clock."""

    def __init__(self, reads, everybody=0.0, ours=0.0, wall=1.0):
        self.reads, self.seconds, self.wall = iter(reads), [(0.0, 0.0), (everybody, ours)], wall
        self.now = 0.0

    def read(self):
        return next(self.reads)

    def clock(self):
        self.now += self.wall
        return self.now

    def watch(self, monkeypatch):
        seconds = iter(self.seconds * 9)
        monkeypatch.setattr(machine_watch, "_processor_seconds", lambda: next(seconds))
        monkeypatch.setattr(machine_watch.psutil, "cpu_count", lambda: 2)
        return machine_watch.Watch(self.clock, self.read)


@pytest.mark.parametrize("around, everybody, ours, busy", [
    ([20e9] * 10, 2.0, 2.0, False),              # both processors, all of it ours
    ([20e9] * 10, 2.0, 1.9, False),
    ([20e9] * 10, 2.0, 1.2, True),               # 0.4 of the time is somebody else's
    ([20e9] * 6 + [9e9] * 4, 2.0, 2.0, False),
    ([20e9] * 2 + [9e9] * 8, 2.0, 2.0, True),
    ([20e9] * 8 + [2e9] * 2, 2.0, 2.0, False)])  # a moment's hiccup
def test_others_work_shows_in_reads_of_memory_or_in_processor_time(monkeypatch, around,
                                                                   everybody, ours, busy):
    watch = Clocks(around, everybody, ours).watch(monkeypatch)
    watch.before(3)
    watch.after(3)
    machine, moments = machine_watch.from_metadata(
        json.loads(json.dumps(machine_watch.to_metadata(watch))))
    assert machine.read == 20e9 and moments.keys() == {3}
    assert machine_watch.is_busy(moments[3], machine) == busy
    note = machine_watch.note(moments[3], machine)
    assert machine.name in html.unescape(note) and machine.day in note
    assert ("The machine was busy" in note) == busy


def test_a_cell_of_a_moment_is_not_judged_by_clocks_that_tick_slowly(monkeypatch):
    watch = Clocks([20e9] * 10, everybody=0.02, ours=0.0, wall=0.01).watch(monkeypatch)
    watch.before(0)
    watch.after(0)
    assert watch.moments[0].others == 0


def test_a_real_watch_sees_its_own_work_as_its_own():
    watch = machine_watch.Watch()
    watch.before(0)
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    watch.after(0)
    assert 0 <= watch.moments[0].others <= 1 and 1e8 < watch.moments[0].read < 1e13
    assert watch.machine().read >= watch.moments[0].read


MEASURED_CELL = """\
```{code-cell} python
:tags: [measured]

print("something took 3 ms")
```
"""


def test_measured_outputs_name_their_machine_and_publishing_refuses_a_busy_one(small, tmp_path,
                                                                               monkeypatch):
    text = (small / "book" / "chapters" / "98_small.md").read_text(encoding="utf-8")
    path = tmp_path / "98_small.md"
    path.write_text(f"{text}\n\n{MEASURED_CELL}", encoding="utf-8")
    chapter, runs = read_chapter(path), []
    speeds = {"now": 20e9}
    monkeypatch.setattr(machine_watch, "_reader", lambda: lambda: speeds["now"])
    monkeypatch.setattr(machine_watch, "_processor_seconds", lambda: speeds["others"])

    def outputs(chapter, root, on_cell, arguments, around):
        runs.append(1)
        shown = []
        for cell in chapter.cells:
            for _ in range((cell.kind == "code") + (cell.exercise is not None)):
                told = nbformat.v4.new_code_cell(metadata={"tags": list(cell.tags)})
                around(told, False)
                speeds["others"] = next(busy)
                shown.append([nbformat.v4.new_output("stream", text="3 ms")])
                around(told, True)
        return shown

    def edition(quiet):
        return edition_cache.executed_edition(chapter, "key", small, tmp_path / "cache",
                                              lambda done, total: None, quiet)
    monkeypatch.setattr(editions, "outputs_of", outputs)
    monkeypatch.setattr(machine_watch.Watch.__init__, "__defaults__",
                        (iter(range(1000)).__next__, None))
    speeds["others"] = (0.0, 0.0)
    busy = ((10.0 * at, 0.0) for at in range(1000))
    notes = [output.data["text/html"] for cell in edition(False).cells
             for output in cell.get("outputs", []) if output.output_type == "display_data"]
    assert len(notes) == 1 and "The machine was busy" in notes[0] and len(runs) == 1
    assert edition_cache.kept_run_is_busy(chapter, "key", tmp_path / "cache")
    with pytest.raises(ChapterError, match="98_small.md was measured on a busy machine"):
        edition(True)
    assert len(runs) == 2                                  # it was tried again, once

    busy = ((10.0 * at, 10.0 * at) for at in range(1000))  # now all of it is ours
    speeds["others"] = (0.0, 0.0)
    [cell] = [cell for cell in edition(True).cells if "measured" in cell.metadata.get("tags",
                                                                                     [])]
    assert "Measured on" in cell.outputs[-1].data["text/html"] and len(runs) == 3
    assert not edition_cache.kept_run_is_busy(chapter, "key", tmp_path / "cache")
    assert edition(True) and len(runs) == 3
    learner = editions.learner_edition(chapter, small)
    assert not [cell for cell in learner.cells if "measured" in cell.metadata.get("tags", [])]


CLOCKS = {"perf_counter", "decode_step_seconds", "measure_machine", "profile"}


def clock_readers(sources):
    """The functions of a chapter that read a clock, themselves or through others."""
    functions = {node.name: {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                 | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                 for source in sources for node in ast.walk(ast.parse(source))
                 if isinstance(node, ast.FunctionDef)}
    readers = set(CLOCKS)
    while more := {name for name, used in functions.items()
                   if used & readers and name not in readers}:
        readers |= more
    return readers


@pytest.mark.parametrize("stem", CHAPTERS)
def test_cells_that_measure_say_so(stem):
    """What a cell runs by itself, outside of what it defines, reads a clock and prints."""
    chapter = read_chapter(BOOK / "chapters" / f"{stem}.md")
    cells = [(cell, python_of(cell.source)) for cell in chapter.cells
             if cell.kind == "code" and not cell.exercise
             and "raises-exception" not in cell.tags]
    readers = clock_readers(source for _, source in cells)
    for cell, source in cells:
        called = {getattr(call.func, "id", getattr(call.func, "attr", ""))
                  for node in ast.parse(source).body
                  if not isinstance(node, ast.FunctionDef | ast.ClassDef)
                  for call in ast.walk(node) if isinstance(call, ast.Call)}
        if called & readers and ("print" in called or "table" in called):
            assert "measured" in cell.tags, f"{chapter.path.name}, line {cell.line}"
