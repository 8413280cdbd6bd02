"""Notebooks where Colab runs them: an empty folder, a Python that has what Colab has, and the
course as the first cell installs it, from the project's own wheel.

With --long, and with a network: some minutes, most of them to install PyTorch. Every chapter
runs up to its first check, with its first exercise solved.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from gearworks import hub

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
CHAPTERS = chapter_paths(REPOSITORY / "book" / "chapters")
# what the first cell looks for, and the kernel itself
COLAB_HAS = ("torch", "transformers", "matplotlib", "numba", "ipykernel", "numpy", "tokenizers",
             "safetensors", "psutil", "ipywidgets", "tqdm", "jinja2", "httpx", "pydantic")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built from a copy of what git knows."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True,
                            capture_output=True).stdout.decode().split("\0")
    for name in filter(None, listed):
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, source)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """The Python of a machine such as Colab's, without the course."""
    folder = tmp_path_factory.mktemp("colab")
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins = {line.partition("==")[0]: line.partition(" ;")[0] for line in
            (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()}
    pip(python, "install", *(pins[name] for name in COLAB_HAS))
    return python


def pip(python, *arguments):
    done = subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check",
                           *map(str, arguments)], capture_output=True, encoding="utf-8",
                          errors="replace", env=clean(os.environ))
    if done.returncode:
        # where no index answers, nothing can be installed
        no_network = "No matching distribution" in done.stderr or "Connection" in done.stderr
        give_up = pytest.fail if os.environ.get("CI") or not no_network else pytest.skip
        give_up(f"pip {arguments[0]}: {done.stderr[-2000:]}")


def clean(environment):
    """An environment without the course on the path."""
    return {name: value for name, value in environment.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV", "JPY_SESSION_NAME")}


class Kernel(AsyncKernelManager):
    """A kernel of another Python."""

    python = ""

    @property
    def kernel_spec(self):
        return KernelSpec(argv=[self.python, "-m", "ipykernel_launcher", "-f",
                                "{connection_file}"], language="python", display_name="Colab")


@pytest.fixture(scope="module")
def installed(wheel, colab, tmp_path_factory):
    """That Python after the first chapter's first cell: the course is installed."""
    notebook = first_cells(CHAPTERS[0], wheel, up_to="install")
    run(notebook, colab, tmp_path_factory.mktemp("empty"))
    told = subprocess.run([str(colab), "-c", "import gearworks, autograder\n"
                           "print(gearworks.__file__, autograder.__file__)"],
                          capture_output=True, encoding="utf-8", env=clean(os.environ),
                          cwd=colab.parent)
    places = [Path(place) for place in told.stdout.split()]
    assert len(places) == 2, told.stderr
    assert all(place.is_relative_to(colab.parents[1]) for place in places)
    return colab


def first_cells(path, wheel, up_to=None):
    """A learner's notebook as Colab saves it, up to its first check, the exercise solved."""
    chapter = read_chapter(path)
    notebook = editions.solve(editions.learner_edition(chapter, REPOSITORY),
                              editions.solutions(chapter))
    last = up_to or chapter.exercises[0].check_id
    ids = [cell.id for cell in notebook.cells]
    notebook.cells = notebook.cells[:ids.index(last) + 1]
    install = next(cell for cell in notebook.cells if cell.id == "install")
    address = f"git+{editions.homepage(REPOSITORY)}"
    assert address in install.source
    install.source = install.source.replace(address, wheel.as_uri())
    for cell in notebook.cells:                     # nbformat 4.0 has no ids of its own
        cell.metadata["id"] = cell.pop("id")
    notebook.nbformat_minor = 0
    return notebook


def run(notebook, python, folder):
    manager = Kernel()
    manager.python = str(python)
    client = NotebookClient(notebook, km=manager, timeout=900,
                            resources={"metadata": {"path": str(folder)}})
    environment = clean(os.environ) | {"GEARWORKS_HOME": str(hub.home()),
                                       "PATH": os.pathsep.join([str(python.parent),
                                                                os.environ["PATH"]])}
    client.execute(env=environment)
    return notebook


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_begins_on_colab(path, wheel, installed, tmp_path):
    notebook = run(first_cells(path, wheel), installed, tmp_path)
    *_, last = notebook.cells
    chapter = read_chapter(path)
    points = float(editions.exercise_points(chapter.exercises[0]))
    [score] = [output for output in last.outputs if output.output_type == "execute_result"]
    assert float(score.data["text/plain"]) == points
    [board] = [cell.outputs for cell in notebook.cells if cell.metadata.get("id") == "progress"]
    assert f"{points:g} of 100 points, 1 of" in board[0].data["text/plain"]
    assert [*tmp_path.iterdir()] == []                     # and it leaves nothing behind
