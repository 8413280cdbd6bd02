"""Sphinx extension: each page says its version, and the whole site is in one archive, too.

The archive lies beside the site, and what comes out of it works from any folder or USB stick:
pages load nothing from elsewhere.
"""

import os
import zipfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

from gearworks import __version__

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", name_the_version)
    app.connect("build-finished", write_archive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def name_the_version(app: Sphinx, config: Config) -> None:
    """Put the course's version at the foot of every page, below its date."""
    config.html_theme_options["extra_footer"] = f"<p>Gearworks {__version__}</p>"


def write_archive(app: Sphinx, exception: Exception | None) -> None:
    """Write the site as gearworks-book-VERSION.zip, whole or not at all."""
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    path = site.with_name(f"gearworks-book-{__version__}.zip")
    draft = path.with_suffix(".new")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(site.rglob("*")):
            if file.is_file() and not file.name.startswith(".") and not _is_unused(file):
                archive.write(file, Path(path.stem) / file.relative_to(site))
    os.replace(draft, path)
    logger.info(f"The site as one file: {path}")


def _is_unused(file: Path) -> bool:
    """Whether no page asks for it: maps for the theme's developers, and the fonts of icons."""
    return file.suffix == ".map" or "fontawesome" in file.parts
