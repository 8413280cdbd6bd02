"""Sphinx extension: a page of `chapters/NN_name.ipynb` shows the chapter's book edition.

The file on the disk is the learner's notebook: without outputs, and with a cell that installs
the course. While Sphinx reads it, its text is replaced by the edition that was executed with
the reference. So page names, the Colab button and the download are the learner notebook's, and
the page has outputs.
"""

import hashlib
import os
import re
from pathlib import Path

import nbformat
from edition_cache import executed_edition, kept_run_is_busy, run_key
from figure_files import with_data_apart, without_repeated_styles
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import SphinxError
from sphinx.util import logging
from tqdm.auto import tqdm

from autograder.chapters.chapter import Chapter, read_chapter
from gearworks import hub
from gearworks.errors import GearworksError

logger = logging.getLogger(__name__)

KEY = "gearworks_edition"
PUBLISH = "GEARWORKS_PUBLISH"           # `course.py book --publish` sets it
_CHAPTER_LINK = re.compile(r"\[([^\]]*)\]\((\d\d_\w+)\.ipynb(?:#[^)]*)?\)")


class EditionError(SphinxError):
    """A chapter's edition could not be made."""

    category = "The book cannot be built"


def setup(app: Sphinx) -> dict:
    app.connect("env-get-outdated", changed_chapters)
    app.connect("source-read", swap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def chapter_of(app: Sphinx, docname: str) -> Chapter | None:
    """The chapter that a page shows, or None."""
    folder, _, stem = docname.rpartition("/")
    path = Path(app.srcdir) / "book" / "chapters" / f"{stem}.md"
    return read_chapter(path) if folder == "chapters" and path.is_file() else None


def changed_chapters(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str],
                     removed: set[str]) -> list[str]:
    """The pages to read again though their notebook is as it was: other outputs, say."""
    try:
        chapters = {docname: chapter_of(app, docname)
                    for docname in env.found_docs - added - changed}
        return [docname for docname, chapter in chapters.items()
                if chapter and (env.metadata[docname].get(KEY) != page_key(chapter)
                                or is_published() and kept_run_is_busy(
                                    chapter, run_key(chapter), runs_folder()))]
    except GearworksError as error:
        raise EditionError(str(error)) from error


def is_published() -> bool:
    """Whether this build is for everybody: then no figure may come from a busy machine."""
    return os.environ.get(PUBLISH) == "1"


def runs_folder() -> Path:
    """Where runs of chapters are kept."""
    return hub.home() / "book"


def page_key(chapter: Chapter) -> str:
    """A digest of what decides how a chapter's page looks: its text too."""
    text = hashlib.sha256(chapter.path.read_bytes()).hexdigest()[:20]
    return f"{run_key(chapter)}-{text}"


def swap(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the book edition in the place of a learner notebook's text."""
    try:
        chapter = chapter_of(app, docname)
        if chapter is None:
            return
        with Bar(chapter.stem) as bar:
            notebook = executed_edition(chapter, run_key(chapter), Path(app.srcdir),
                                        runs_folder(), bar.on_cell, is_published())
    except GearworksError as error:
        raise EditionError(str(error)) from error
    styles: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = without_dead_links(cell.source, app.env.found_docs)
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                shown = with_data_apart(output.data["text/html"], docname, app.env)
                output.data["text/html"] = without_repeated_styles(shown, styles)
    app.env.metadata[docname][KEY] = page_key(chapter)
    source[0] = nbformat.writes(notebook, version=4)


def without_dead_links(text: str, pages: set[str]) -> str:
    """Text in which links to chapters that are not written yet are plain words.

    >>> without_dead_links("[one](01_a.ipynb), [two](02_b.ipynb#x)", {"chapters/01_a"})
    '[one](01_a.ipynb), two'
    """
    return _CHAPTER_LINK.sub(
        lambda link: link[0] if f"chapters/{link[2]}" in pages else link[1], text)


class Bar:
    """Shows how far a chapter's execution is; says nothing when it comes from the cache."""

    def __init__(self, stem: str):
        self.stem, self.bar = stem, None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_cell(self, done: int, total: int) -> None:
        if self.bar is None:
            logger.info(f"running {self.stem}: {total} cells")
            self.bar = tqdm(total=total, desc=self.stem, unit=" cells", disable=None,
                            leave=False)
        self.bar.update(done - self.bar.n)
