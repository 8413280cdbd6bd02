"""The instructors' guide, tried as it is written: from a fresh machine to a graded class.

The commands of its first section are taken from the page and run, in an empty folder, with an
empty home and an environment of their own. Only two things are stood in for: the address that
is cloned, by this repository, and `sudo`, where whoever runs this is root. It needs the
registries, so it runs with --fresh-machine.
"""

import csv
import os
import re
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from autograder.chapters import editions
from autograder.chapters.chapter import read_chapter
from autograder.classes.benchmark import signed

REPOSITORY = Path(__file__).resolve().parents[2]
SECTION = "From a fresh machine to a graded class"
CLONED = "https://github.com/gearworks-course/gearworks"
MINUTES = 10
STUDENTS = 10


def commands(section):
    """What a section of the guide has in its blocks of bash."""
    guide = (REPOSITORY / "book" / "instructors.md").read_text(encoding="utf-8")
    [text] = re.findall(rf"^## {section}\n(.*?)^###? ", guide, re.M | re.S)
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S))


def download(folder):
    """What Canvas gives: the submissions under its names, and the gradebook."""
    chapter = read_chapter(REPOSITORY / "book" / "chapters" / "04_transformer.md")
    learner = editions.learner_edition(chapter, REPOSITORY)
    solved = editions.solutions(chapter)
    names = list(solved)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "submissions.zip", "w") as archive:
        for number in range(STUDENTS - 1):
            own = {name: signed(solved[name], number)
                   for name in names[:len(names) - number]}
            archive.writestr(f"student{number}_{100 + number}_{900 + number}_04_transformer"
                             ".ipynb", editions.to_text(editions.solve(learner, own)))
    with open(folder / "gradebook.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section",
                        "Chapter 4 (77)"])
        table.writerow(["    Points Possible", "", "", "", "", "100"])
        table.writerows([f"Student, No {number}", 100 + number, f"sis{number}", f"s{number}",
                         "A", ""] for number in range(STUDENTS))


def test_the_section_is_read():
    text = commands(SECTION)
    assert CLONED in text and "pip install" in text and "autograder doctor" in text
    assert "course.py grade ~/Downloads/submissions.zip" in text


def test_from_a_fresh_machine_to_a_graded_class(tmp_path, pytestconfig):
    if not pytestconfig.getoption("--fresh-machine"):
        pytest.skip("needs the registries: runs with --fresh-machine")
    home, empty, tools = (tmp_path / name for name in ("home", "empty", "tools"))
    download(home / "Downloads")
    for folder in (empty, tools):
        folder.mkdir()
    (tools / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (tools / "sudo").chmod(0o755)
    inherited = {name: value for name, value in os.environ.items()
                 if name not in ("PYTHONPATH", "VIRTUAL_ENV", "HF_HUB_OFFLINE")}
    own = Path(os.environ.get("VIRTUAL_ENV", "/nowhere")) / "bin"
    path = [place for place in os.environ["PATH"].split(os.pathsep) if Path(place) != own]
    environment = inherited | {
        "HOME": str(home), "PATH": os.pathsep.join([str(tools), *path]),
        "GIT_CONFIG_COUNT": "2", "GIT_CONFIG_VALUE_0": CLONED, "GIT_CONFIG_VALUE_1": "*",
        "GIT_CONFIG_KEY_0": f"url.{REPOSITORY}.insteadOf",
        "GIT_CONFIG_KEY_1": "safe.directory"}
    start = time.monotonic()
    done = subprocess.run(["bash", "-e"], input=commands(SECTION), cwd=empty, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          errors="replace")
    minutes = (time.monotonic() - start) / 60
    print(f"{done.stdout[-3000:]}\nfrom a fresh machine: {minutes:.1f} minutes")
    assert done.returncode == 0, done.stdout[-3000:]
    results = empty / "gearworks" / "graded"
    with open(results / "grades.csv", encoding="utf-8", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert len(rows) == STUDENTS
    statuses = [row["status"] for row in rows.values()]
    assert statuses.count("not submitted") == 1 and statuses.count("graded") == STUDENTS - 1
    totals = sorted(float(row["total"]) for row in rows.values() if row["total"])
    assert totals[-1] == 100 and totals[0] < 100
    assert (results / "report.html").exists()
    assert len(list(results.glob("feedback/*/04_transformer.html"))) == STUDENTS - 1
    assert minutes < MINUTES
