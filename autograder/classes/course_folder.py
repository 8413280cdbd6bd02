"""Makes a folder in which an instructor runs nbgrader: source editions, and settings."""

from pathlib import Path

from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.chapters.editions import (Progress, check_chapter, source_edition, source_path,
                                          to_text)
from gearworks.errors import GearworksError

CONFIG = '''\
"""The settings of nbgrader for this course. Yours go below.

`autograder course` never changes this file.
"""

from pathlib import Path

import autograder

load_subconfig("nbgrader_config.py", path=str(Path(autograder.__file__).parent))

c = get_config()
c.CourseDirectory.course_id = {name!r}
'''


def make_course(folder: Path, root: Path, progress: Progress = iter) -> list[Path]:
    """Make or renew a course of nbgrader from the chapters of a repository.

    Returns the notebooks that it wrote. A configuration that is there stays as it is, and so do
    releases, submissions and grades. Raises GearworksError when the folder cannot be written,
    ChapterError for a chapter that is not in order.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nbgrader_config.py"
        if not config.exists():
            text = CONFIG.format(name=folder.resolve().name)
            config.write_text(text, encoding="utf-8", newline="\n")
        written = []
        for chapter in map(read_chapter, progress(chapter_paths(root / "book" / "chapters"))):
            check_chapter(chapter)
            path = source_path(folder, chapter)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = to_text(source_edition(chapter, root))
            path.write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
        return written
    except OSError as error:
        raise GearworksError(f"cannot make a course in {folder}", str(error),
                             "name a folder that you may write to") from None
