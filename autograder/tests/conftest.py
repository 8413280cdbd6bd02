"""Options of the autograder's tests, the small chapter that many of them work on, and the
sandbox that a class gets."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--seeds", type=int, default=1,
                     help="how many seeds the kill matrix is tried with")
    parser.addoption("--whole-class", action="store_true",
                     help="try what is promised about classes at its full size: 5,000 "
                          "submissions, 50 kills, 20 runs; hours")
    parser.addoption("--fresh-machine", action="store_true",
                     help="run the instructors' guide's commands in a new environment; needs "
                          "the registries, and minutes of a machine that is free")
    parser.addoption("--all-engines", action="store_true",
                     help="try every engine of accepted versions, with all tests of its parts")
    parser.addoption("--every-page", action="store_true",
                     help="look for barriers on every page of the book, not on a few; "
                          "some twenty minutes")
    parser.addoption("--run-all", action="store_true",
                     help="run every chapter's notebook as it is given, not the first alone")


@pytest.fixture(scope="module")         # no engine is loaded before --engine has said which one
def chapter():
    from autograder.chapters.chapter import read_chapter
    return read_chapter(HERE / "data" / "98_small.md")


@pytest.fixture(scope="module")
def learner(chapter):
    """The small chapter's notebook, in which nobody has worked yet."""
    from autograder.chapters import editions
    return editions.learner_edition(chapter, HERE.parents[1])


@pytest.fixture(scope="module")
def reports():
    """Judges attempts, the same one once."""
    from autograder.judge.judging import judge
    from autograder.judge.workers import Workers
    with Workers() as workers:
        yield cache(lambda attempt, **how: judge(attempt, workers, **how))


@pytest.fixture
def judged_once(reports, monkeypatch):
    """In a test that is not about judging, the same code gets the same report for nothing."""
    from autograder.submissions import answers
    monkeypatch.setattr(answers, "judge", lambda attempt, _, memory=None, **how: reports(
        attempt, **how))


@pytest.fixture
def sleeper(chapter, learner, monkeypatch):
    """A submission in which one of two answers only sleeps; and the wall clock's limit is
    seconds, as long as nobody computes for longer."""
    from autograder.chapters import editions
    monkeypatch.setattr("autograder.processes.limits.WALL_PER_CPU", 0.3)
    answer = editions.solutions(chapter)
    name, count = "pipeline-run_request", "accounting-parameter_count"
    sleeps = answer[name].replace("    prompt_ids = encode(prompt)\n",
                                  "    import time\n    time.sleep(1000)\n"
                                  "    prompt_ids = encode(prompt)\n")
    assert sleeps != answer[name]
    return editions.to_text(editions.solve(
        learner, {name: sleeps, count: answer[count]})).encode()


@pytest.fixture(scope="session")
def sandbox():
    """Bubblewrap. Without it what needs it is skipped; where `CI` is set, it fails."""
    from autograder.sandbox.bubblewrap import Bubblewrap
    found = Bubblewrap()
    if problem := found.problem():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(problem)
    return found


@pytest.fixture
def jupyterlab(tmp_path):
    """A function that runs JupyterLab in a folder, with settings of its own:
    with jupyterlab(folder, **environment) as address."""
    @contextmanager
    def running(folder, **environment):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind.lower())
               for kind in ("CONFIG", "DATA", "RUNTIME")}
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.port={port}",
             f"--ServerApp.root_dir={folder}", "--ServerApp.port_retries=0",
             "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True",
             "--allow-root"],
            cwd=folder, env=os.environ | own | environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api")
                    break
                except OSError:
                    assert server.poll() is None, "JupyterLab ended"
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)
    return running
