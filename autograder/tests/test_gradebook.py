"""nbgrader's gradebook after a class was graded, on SQLite and on PostgreSQL, and that nbgrader
itself, `progress` and the class grader agree on whatever has happened to a notebook."""

import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
from accidents import ACCIDENTS, HONEST, PART, REPAIRED

from autograder.chapters import editions
from autograder.classes import course_folder
from autograder.classes.class_run import Results, grade_class, publish
from autograder.classes.engine import Course, Here
from autograder.classes.gradebook import (directory_of, merge, opened, release_of,
                                          require_released, write_autograded)
from autograder.classes.late import late_policy
from autograder.classes.record import Status
from autograder.classes.restored import restored
from autograder.classes.roster import Roster, Student
from autograder.classes.submitted import find_submissions, notebooks_of
from autograder.submissions import progress
from autograder.submissions.attempts import find_components
from gearworks.errors import GearworksError

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).parent / "data" / "98_small.md"
RUN, COUNT = "check-pipeline-run_request", "check-accounting-parameter_count"
SECRET = "of the tests"
pytestmark = pytest.mark.usefixtures("judged_once")


@pytest.fixture(scope="module")
def course(tmp_path_factory, chapter):
    """A course of nbgrader that has released the small chapter."""
    patch = pytest.MonkeyPatch()
    root = tmp_path_factory.mktemp("repository")
    (root / "book" / "chapters").mkdir(parents=True)
    shutil.copytree(SMALL.parent, root / "autograder" / "tests" / "data")
    shutil.copy(SMALL, root / "book" / "chapters")
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    required = [each for each in chapter.exercises if not each.optional]
    patch.setattr(editions, "REQUIRED_POINTS", sum(map(editions.exercise_points, required)))
    folder = tmp_path_factory.mktemp("my_course")
    course_folder.make_course(folder, root)
    patch.undo()
    done = subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", "ch98"],
                          cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def grader(chapter):
    return Course((chapter,), SECRET, None)


@pytest.fixture(scope="module")
def solved(chapter, learner):
    return editions.to_text(editions.solve(learner, editions.solutions(chapter))).encode()


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory):
    """The URL of a PostgreSQL that runs while these tests do.

    Where none is installed they are skipped; where `CI` is set, they fail instead.
    """
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = installed[-1] if installed else shutil.which("initdb")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("PostgreSQL is not installed")
    binaries = Path(found).parent
    folder = tmp_path_factory.mktemp("postgresql")
    user = {}
    if os.geteuid() == 0:                       # as whom it refuses to run
        import pwd

        owner = pwd.getpwnam("postgres")
        user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        for above in [*folder.parents][:-2]:
            above.chmod(above.stat().st_mode | 0o011)           # so that it may be entered
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run([binaries / "initdb", "--pgdata", folder / "data", "--username", "grader",
                    "--auth", "trust", "--no-sync"], check=True, cwd=folder,
                   stdout=subprocess.DEVNULL, **user)
    server = subprocess.Popen(
        [binaries / "postgres", "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port),
         "-k", folder, "-F"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        **user)
    try:
        ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready).returncode:
            assert server.poll() is None
            time.sleep(0.1)
        yield f"postgresql+psycopg://grader@127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def gradebook(request, course, tmp_path):
    """The URL of a gradebook that knows the released chapter."""
    if request.param == "sqlite":
        shutil.copy(course / "gradebook.db", tmp_path)
        return f"sqlite:///{tmp_path / 'gradebook.db'}"
    server = request.getfixturevalue("postgresql")
    import psycopg

    name = f"class_{abs(hash(str(tmp_path)))}"
    plain = server.replace("+psycopg", "")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = f"{server}/{name}"
    made = subprocess.run(
        [sys.executable, "-m", "nbgrader", "generate_assignment", "ch98", "--force",
         "--db", url], cwd=course, capture_output=True, encoding="utf-8")
    assert made.returncode == 0, made.stderr
    return url


def hand_in(folder, student, data):
    path = folder / student / "ch98" / "98_small.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def handed_in(solved, chapter, learner, tmp_path):
    """A folder: right, half, untouched, unreadable."""
    half = editions.solve(learner, {"accounting-parameter_count":
                                    editions.solutions(chapter)["accounting-parameter_count"]})
    folder = tmp_path / "submitted"
    hand_in(folder, "right", solved)
    hand_in(folder, "half", editions.to_text(half).encode())
    hand_in(folder, "untouched", editions.to_text(learner).encode())
    hand_in(folder, "unreadable", b"")
    (folder / "half" / "ch98" / "timestamp.txt").write_text("2026-03-02 13:00:00.0 UTC")
    return folder


def run(folder, grader, results, gradebook, roster=Roster(), **more):
    submissions = find_submissions(folder, grader.chapters, roster=roster)
    rows = grade_class(submissions, grader, results, Here(grader), roster=roster, **more)
    with opened(gradebook, "gearworks") as book:
        require_released(book, ["ch98"])
        rows = merge(rows, results.records, grader.chapters, book)
    publish(rows, results, datetime(2026, 3, 3, tzinfo=UTC))
    return {row.student: row for row in rows}


def scores(gradebook, student):
    with opened(gradebook, "gearworks") as book:
        notebook = book.find_submission_notebook("98_small", "ch98", student)
        return {grade.name: (grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                for grade in notebook.grades}, notebook.late_submission_penalty


def test_the_gradebook_has_the_judge_s_scores(gradebook, grader, handed_in, chapter, tmp_path):
    rule = late_policy("10%/day", "2026-03-01T12:00+00:00")
    roster = Roster((Student("right"), Student("half", "Half", "Done"), Student("absent")))
    results = Results(tmp_path / "out")
    rows = run(handed_in, grader, results, gradebook, roster=roster, late=rule)
    worth = {each.check_id: editions.exercise_points(each) for each in chapter.exercises}
    assert scores(gradebook, "right")[0] == {id: (most, None, False)
                                             for id, most in worth.items()}
    found, penalty = scores(gradebook, "half")
    assert found[COUNT][0] == worth[COUNT] and found[RUN][0] == 0
    assert penalty == rows["half"].penalty == pytest.approx(worth[COUNT] / 5)
    assert rows["half"].total == pytest.approx(worth[COUNT] * 4 / 5)
    unread, _ = scores(gradebook, "unreadable")
    assert all(score is None and is_open for score, _, is_open in unread.values())
    assert rows["unreadable"].total is None and rows["absent"].status is Status.NOT_SUBMITTED
    with opened(gradebook, "gearworks") as book:
        assert book.find_student("half").last_name == "Done"
        assert {student.id for student in book.students} == {
            "right", "half", "untouched", "unreadable", "absent"}
        assert book.find_submission("ch98", "half").timestamp.hour == 13
        submissions = {each.student.id for each in book.assignment_submissions("ch98")}
    assert submissions == {"right", "half", "untouched", "unreadable"}
    again = run(handed_in, grader, results, gradebook, roster=roster, late=rule)
    assert again == rows


def test_points_that_a_person_gave_stay_and_count(gradebook, grader, handed_in, chapter,
                                                  tmp_path):
    results = Results(tmp_path / "out")
    before = run(handed_in, grader, results, gradebook)
    with opened(gradebook, "gearworks") as book:
        book.find_grade(RUN, "98_small", "ch98", "half").manual_score = 3.0
        for grade in book.find_submission_notebook("98_small", "ch98", "unreadable").grades:
            grade.manual_score = 1.0
        book.db.commit()
    for _ in range(2):
        rows = run(handed_in, grader, results, gradebook, again=True)
        assert scores(gradebook, "half")[0][RUN] == (0, 3.0, True)
        assert rows["half"].manual and rows["half"].total == before["half"].total + 3
        assert rows["unreadable"].manual and rows["unreadable"].total == min(
            3, rows["unreadable"].required_max)
        assert rows["right"] == before["right"]
    page = (results.folder / "feedback" / "half" / "98_small.html").read_text(encoding="utf-8")
    assert f"{rows['half'].total:g} of {rows['half'].required_max:g} points" in page
    assert "changed by a person" in page


def test_what_could_not_be_graded_is_open_and_a_person_may_give_points(
        gradebook, grader, sleeper, tmp_path):
    hand_in(tmp_path / "submitted", "ben", sleeper)
    results = Results(tmp_path / "out")
    before = run(tmp_path / "submitted", grader, results, gradebook)["ben"]
    found, _ = scores(gradebook, "ben")
    assert found[RUN] == (None, None, True) and found[COUNT] == (before.total, None, False)
    assert before.status is Status.PARTIAL and before.total == before.required > 0
    with opened(gradebook, "gearworks") as book:
        book.find_grade(RUN, "98_small", "ch98", "ben").manual_score = 2.0
        book.db.commit()
    after = run(tmp_path / "submitted", grader, results, gradebook)["ben"]
    assert after.manual and after.total == before.total + 2


def test_nbgrader_too_leaves_open_what_could_not_be_graded(course, grader, chapter, sleeper,
                                                           tmp_path, monkeypatch):
    from nbgrader.preprocessors import SaveAutoGrades

    from autograder.classes import nbgrader_preprocessors as ours

    monkeypatch.setenv("AUTOGRADER_SECRET", SECRET)
    monkeypatch.setattr(ours, "outline", lambda: grader.chapters)
    shutil.copy(course / "gradebook.db", tmp_path)
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    with opened(url, "gearworks") as book:
        book.update_or_create_student("ben")
        book.update_or_create_submission("ch98", "ben")
    told = {"nbgrader": {"notebook": "98_small", "assignment": "ch98", "student": "ben",
                         "db_url": url}}
    notebook, _ = ours.JudgeChecks().preprocess(nbformat.reads(sleeper.decode(), 4), told)
    SaveAutoGrades().preprocess(notebook, told)
    assert scores(url, "ben")[0][RUN][0] > 0                # stock: full points for no number
    ours.SaveJudgedGrades().preprocess(notebook, told)
    found, _ = scores(url, "ben")
    assert found[RUN] == (None, None, True) and found[COUNT][0] > 0 and not found[COUNT][2]


def test_what_was_never_released_is_said_before_grading(course, tmp_path):
    with opened(f"sqlite:///{tmp_path / 'new.db'}", "gearworks") as book:
        with pytest.raises(GearworksError, match="does not know ch98"):
            require_released(book, ["ch98"])


def test_nbgrader_goes_on_from_there(course, grader, handed_in, tmp_path):
    """Its feedback shows the notebooks with their results, its export has the same totals."""
    results = Results(tmp_path / "out")
    directory = directory_of(course)
    rows = run(handed_in, grader, results, directory.db_url)
    submissions = find_submissions(handed_in, grader.chapters)
    write_autograded(list(rows.values()), submissions, results.records, grader.chapters,
                     directory)
    for command in (["generate_feedback", "ch98"], ["export", "--to", "grades.csv"]):
        done = subprocess.run([sys.executable, "-m", "nbgrader", *command], cwd=course,
                              capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
    page = (course / "feedback" / "right" / "ch98" / "98_small.html").read_text("utf-8")
    assert "parameter_count" in page and "passed" in page
    import csv

    with open(course / "grades.csv", encoding="utf-8", newline="") as file:
        table = {row["student_id"]: row for row in csv.DictReader(file)}
    for student, row in rows.items():
        assert table[student]["total"] == ("" if row.total is None else str(row.total)), student
    assert table["unreadable"]["status"] == "not graded"


@pytest.mark.parametrize("accident", [each for each in ACCIDENTS
                                      if each.outcome in (HONEST, REPAIRED, PART)],
                         ids=lambda accident: accident.name)
def test_nbgrader_and_progress_agree_with_the_class_grader(accident, course, grader, chapter,
                                                           solved, tmp_path, monkeypatch):
    """nbgrader on the notebook as it should have been handed in, progress on what was."""
    from autograder.classes import nbgrader_preprocessors

    monkeypatch.setenv("AUTOGRADER_SECRET", SECRET)
    monkeypatch.setattr(nbgrader_preprocessors, "outline", lambda: grader.chapters)
    for path, data in accident.files(solved).items():
        (tmp_path / "submitted" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "submitted" / path).write_bytes(data)
    [submission] = find_submissions(tmp_path / "submitted", grader.chapters)
    results = Results(tmp_path / "out")
    [row] = grade_class([submission], grader, results, Here(grader))
    record = results.records.get(row.key)
    ours = {each.check_id: each.points for each in record.exercises}

    notebooks = notebooks_of(submission)
    whole = restored(notebooks, chapter, grader.chapters,
                     release_of(chapter, directory_of(course)))
    nbformat.validate(whole)
    by_nbgrader, _ = nbgrader_preprocessors.JudgeChecks().preprocess(
        whole, {"nbgrader": {"notebook": "98_small"}})
    theirs = {cell.metadata["nbgrader"]["grade_id"]: float(cell.outputs[-1].data["text/plain"])
              for cell in by_nbgrader.cells if cell.metadata.get("nbgrader", {}).get("grade")}
    assert theirs == pytest.approx(ours)

    [by_progress] = progress.measure([chapter], find_components([chapter], notebooks))
    shown = {each.exercise: each.points for each in by_progress.exercises}
    assert shown == pytest.approx({each.exercise: each.points for each in record.exercises})


def test_what_is_collected_is_what_nbgrader_grades(course, grader, chapter, solved):
    """A file that is in order as it is, another one repaired, and none where nothing is."""
    from autograder.classes.collecting import collect

    folder = course / "downloaded"
    folder.mkdir()
    (folder / "ada_31337_4711_98_small-1.ipynb").write_bytes(solved)
    (folder / "ben_31338_4712_98_small.ipynb").write_bytes(solved[:-40])
    (folder / "eve_31339_4713_98_small.ipynb").write_bytes(b"")
    notes = {submission.student: note for submission, note in collect(
        find_submissions(folder, grader.chapters), grader.chapters, directory_of(course))}
    assert notes["ada"] == "" and "damaged" in notes["ben"] and "left out" in notes["eve"]
    place = course / "submitted"
    assert (place / "ada" / "ch98" / "98_small.ipynb").read_bytes() == solved
    repaired = nbformat.read(place / "ben" / "ch98" / "98_small.ipynb", as_version=4)
    ids = [cell.metadata["nbgrader"]["grade_id"] for cell in repaired.cells
           if "nbgrader" in cell.metadata]
    assert {each.check_id for each in chapter.exercises} <= {*ids} and len(ids) == len({*ids})
    assert not (place / "eve").exists()


@pytest.fixture
def with_question(course, grader, learner, chapter, tmp_path):
    """A course with a question of the instructor's own, and a submission that answers it:
    nbgrader's settings, the folder of submissions, and that of results."""
    own = tmp_path / "own_course"
    shutil.copytree(course / "source", own / "source")
    shutil.copy(course / "nbgrader_config.py", own)
    path = own / "source" / "ch98" / "98_small.ipynb"
    source = nbformat.read(path, as_version=4)
    question = nbformat.v4.new_markdown_cell("Why?", id="why", metadata={"nbgrader": {
        "grade": True, "grade_id": "why", "locked": False, "points": 5, "schema_version": 3,
        "solution": True, "task": False}})
    source.cells.append(question)
    nbformat.write(source, path)
    done = subprocess.run([sys.executable, "-m", "nbgrader", "generate_assignment", "ch98"],
                          cwd=own, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    solved = editions.solve(learner, editions.solutions(chapter))
    answer = nbformat.from_dict(question)
    answer.source = "Because of the cache."
    solved.cells.insert(0, answer)
    hand_in(own / "submitted", "ada", editions.to_text(solved).encode())
    return directory_of(own), own / "submitted", Results(tmp_path / "out")


def grade_and_show(grader, directory, submitted, results):
    rows = run(submitted, grader, results, directory.db_url)
    write_autograded(list(rows.values()), find_submissions(submitted, grader.chapters),
                     results.records, grader.chapters, directory)
    return rows["ada"]


def required_points(chapter):
    return sum(editions.exercise_points(each) for each in chapter.exercises
               if not each.optional)


def test_an_instructor_s_own_question_waits_for_a_person(with_question, grader, chapter):
    """No number before that, and all of it afterwards; the answer is where formgrader looks."""
    directory, submitted, results = with_question
    row = grade_and_show(grader, *with_question)
    assert row.status is Status.REVIEW and row.total is None
    assert "waits for a person" in row.notes[-1]
    shown = nbformat.read(submitted.parent / "autograded" / "ada" / "ch98" / "98_small.ipynb",
                          as_version=4)
    assert [cell.source for cell in shown.cells if cell.metadata.get("nbgrader", {}).get(
        "grade_id") == "why"] == ["Because of the cache."]
    with opened(directory.db_url, "gearworks") as book:
        book.find_grade("why", "98_small", "ch98", "ada").manual_score = 4.0
        book.db.commit()
    row = grade_and_show(grader, *with_question)
    assert row.status is Status.GRADED and row.manual
    most = required_points(chapter)
    assert row.required == most + 4 and row.required_max == most + 5


def test_a_person_gives_points_in_formgrader(with_question, grader, chapter, browser,
                                             jupyterlab):
    """In a real browser: the answer and the judge's table are there, and the points arrive."""
    directory, submitted, results = with_question
    grade_and_show(grader, *with_question)
    with opened(directory.db_url, "gearworks") as book:
        notebook = book.find_submission_notebook("98_small", "ch98", "ada").id
    with jupyterlab(submitted.parent) as address:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{address}/formgrader/submissions/{notebook}/")
        page.get_by_text("Because of the cache.").wait_for()
        run_request = next(each for each in chapter.exercises if each.check_id == RUN)
        judged = editions.exercise_points(run_request)
        page.locator(f"input#{RUN}[placeholder='{judged}']").wait_for()
        score = page.locator("input#why")
        score.fill("3")
        score.press("Tab")
        for _ in range(600):
            if scores(directory.db_url, "ada")[0]["why"][1] == 3:
                break
            page.wait_for_timeout(100)
        page.close()
    assert scores(directory.db_url, "ada")[0]["why"][1] == 3
    row = grade_and_show(grader, *with_question)
    assert row.required == required_points(chapter) + 3 and row.status is Status.GRADED
