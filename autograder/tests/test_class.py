"""Grading a class: what one run does, what the next one finds, and what is written for whom."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from accidents import ACCIDENTS, HONEST, PART, REPAIRED

from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.checking.running import Outcome, Report
from autograder.checking.running import Status as Ended
from autograder.classes import benchmark, keys
from autograder.classes.audit import AuditLog, broken_at
from autograder.classes.class_run import Results, grade_class, publish, summary
from autograder.classes.engine import Cluster, Course, Here
from autograder.classes.late import late_policy, on_time
from autograder.classes.record import Record, Status
from autograder.classes.roster import Roster, Student
from autograder.classes.submitted import find_submissions
from autograder.judge.memory import Memory
from autograder.judge.workers import Workers
from gearworks.errors import GearworksError, UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN, COUNT = "pipeline-run_request", "accounting-parameter_count"
HIDDEN = "quixotic"             # a word that a learner's code gives away what it sees by


@pytest.fixture(scope="module")
def course(chapter):
    return Course((chapter,), "of the tests", None)


@pytest.fixture(scope="module")
def solved(chapter, learner):
    return editions.to_text(editions.solve(learner, editions.solutions(chapter))).encode()


class Nobody:
    """An engine for a run that has nothing to do."""

    def judged(self, tasks):
        assert list(tasks) == []
        return iter(())


def hand_in(folder, student, data, file="98_small.ipynb"):
    path = folder / student / "ch98" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def signed(data, text):
    """A notebook with a cell of its own, so that it is no copy."""
    notebook = json.loads(data)
    notebook["cells"].append({"cell_type": "markdown", "id": "signed", "metadata": {},
                              "source": text})
    return json.dumps(notebook).encode()


def graded(folder, course, to, engine=None, **more):
    submissions = find_submissions(folder, course.chapters)
    return grade_class(submissions, course, Results(to), engine or Here(course), **more)


# --- one run ----------------------------------------------------------------------------------


def test_broken_submissions_stop_nobody(course, solved, judged_once, tmp_path):
    """Every accident, among others that are honest, in several orders."""
    folder = tmp_path / "submitted"
    expected = {}
    for number in range(40):
        hand_in(folder, f"good-{number:02}", signed(solved, f"by {number}"))
        expected[f"good-{number:02}"] = HONEST
    for accident in ACCIDENTS:
        files = accident.files(solved)
        if not all(path.startswith("ada/ch98/") for path in files):
            continue                        # of a whole folder's layout: see test_accidents
        for path, data in files.items():
            hand_in(folder, accident.name, data, path.removeprefix("ada/ch98/"))
        expected[accident.name] = accident.outcome
    broken = [outcome for outcome in expected.values() if outcome != HONEST]
    assert len(broken) >= 40
    submissions = find_submissions(folder, course.chapters)
    tables = []
    for order in range(3):
        random.Random(order).shuffle(submissions)
        rows = grade_class(submissions, course, Results(tmp_path / str(order)), Here(course))
        tables.append(sorted(rows, key=lambda row: row.student))
        assert {row.student: row.status for row in rows} == expected
        for row in rows:
            if expected[row.student] in (HONEST, REPAIRED):
                assert row.total == row.required_max, row.student
            elif expected[row.student] == PART:
                assert 0 < row.required + row.bonus
            else:
                assert row.total is row.required is row.bonus is row.penalty is None
    assert tables[0] == tables[1] == tables[2]


def test_what_the_grader_itself_stumbles_over_costs_one_and_is_tried_again(
        course, solved, judged_once, tmp_path, monkeypatch):
    from autograder.classes import engine

    for student in ("ada", "ben"):
        hand_in(tmp_path / "submitted", student, signed(solved, student))
    right = engine.grade

    def stumbles(notebooks, *more):
        if "ben" in notebooks[0].cells[-1].source:
            raise MemoryError("no room")
        return right(notebooks, *more)

    monkeypatch.setattr(engine, "grade", stumbles)
    rows = graded(tmp_path / "submitted", course, tmp_path / "out")
    assert [row.status for row in rows] == [Status.GRADED, Status.INFRASTRUCTURE]
    assert rows[1].total is None and "MemoryError" in rows[1].notes[0]
    monkeypatch.setattr(engine, "grade", right)
    assert [row.status for row in graded(tmp_path / "submitted", course, tmp_path / "out")
            ] == [Status.GRADED] * 2


def test_code_that_only_sleeps_costs_its_question_only_and_is_tried_again(
        course, solved, sleeper, judged_once, tmp_path):
    for student, data in (("ada", solved), ("ben", sleeper)):
        hand_in(tmp_path / "submitted", student, data)
    results = Results(tmp_path / "out")
    ada, ben = graded(tmp_path / "submitted", course, results.folder)
    assert ada.status is Status.GRADED and ben.status is Status.PARTIAL
    [slept, counted] = [each for each in results.records.get(ben.key).exercises
                        if each.attempted]
    assert slept.check_id == f"check-{RUN}" and not slept.is_final
    assert counted.is_final and ben.required == counted.points == counted.total > 0
    assert any("run_request could not be graded" in note for note in ben.notes)
    publish([ada, ben], results, NOW)
    page = (results.folder / "feedback" / "ben" / "98_small.html").read_text(encoding="utf-8")
    assert "run_request: no points yet" in page and "could not be graded" in page
    with pytest.raises(AssertionError):
        graded(tmp_path / "submitted", course, results.folder, Nobody())


def test_where_nothing_could_be_graded_there_is_no_number(course, chapter, learner, tmp_path,
                                                          monkeypatch):
    monkeypatch.setattr("autograder.processes.limits.WALL_PER_CPU", 0.1)
    hand_in(tmp_path / "submitted", "ada", editions.to_text(editions.solve(
        learner, {COUNT: "import time\n\n\ndef parameter_count(shape):\n"
                         "    time.sleep(1000)\n"})).encode())
    [row] = graded(tmp_path / "submitted", course, tmp_path / "out")
    assert row.status is Status.INFRASTRUCTURE and row.total is None


def test_the_same_answer_is_judged_once_for_all_who_gave_it(course, solved, tmp_path,
                                                            monkeypatch):
    """Wherever it stands; another secret draws other inputs, for which it is judged anew."""
    started = []
    start = Workers.start
    monkeypatch.setattr(Workers, "start", lambda self, module: (
        started.append(module), start(self, module))[1])
    for student in ("ada", "ben", "cleo"):
        hand_in(tmp_path / "submitted", student, signed(solved, f"by {student}"),
                f"{student}.ipynb")
    rows = graded(tmp_path / "submitted", course, tmp_path / "out")
    assert {row.total for row in rows} == {rows[0].required_max}
    exercises = len(Results(tmp_path / "out").records.get(rows[0].key).exercises)
    assert len({row.key for row in rows}) == 3 and len(started) == exercises > 1
    graded(tmp_path / "submitted", Course(course.chapters, "another", None), tmp_path / "new")
    assert len(started) == 2 * exercises


def test_what_is_no_result_is_not_remembered_and_what_is_old_is_forgotten():
    def report(error=None):
        return Report("x.f", (Outcome("one", "One.", 1.0, True, error or Ended.PASSED),), 1.0)

    memory, made = Memory(2), []

    def judged(what):
        made.append(what)
        return report(Ended.NOT_GRADED if what == "slow" else None)

    for what in ("slow", "slow", "a", "b", "a", "c", "a", "b"):
        memory.report(what, lambda: judged(what))
    assert made == ["slow", "slow", "a", "b", "c", "b"]


def test_a_second_run_has_nothing_to_do_and_writes_the_same(course, solved, judged_once,
                                                            tmp_path):
    folder, results = tmp_path / "submitted", Results(tmp_path / "out")
    for student in ("ada", "ben"):
        hand_in(folder, student, solved)                    # equal: judged once
    rows = graded(folder, course, results.folder)
    publish(rows, results, NOW)
    assert len(list(results.folder.glob("records/*/*.json"))) == 1
    before = {path: path.read_bytes() for path in results.folder.rglob("*") if path.is_file()}
    publish(graded(folder, course, results.folder, Nobody()), results, NOW)
    after = {path: path.read_bytes() for path in results.folder.rglob("*") if path.is_file()}
    assert before == after

    damaged = next(results.folder.glob("records/*/*.json"))
    damaged.write_text(damaged.read_text(encoding="utf-8")[:100], encoding="utf-8")
    with pytest.raises(AssertionError):
        graded(folder, course, results.folder, Nobody())
    assert graded(folder, course, results.folder) == rows


def test_a_key_names_all_that_a_grade_follows_from(chapter, monkeypatch):
    files = [("98_small.ipynb", b"{}")]
    key = keys.submission_key(files, chapter, "secret", "none")
    assert key == keys.submission_key(files, chapter, "secret", "none")
    assert key != keys.submission_key([("98_small.ipynb", b"[]")], chapter, "secret", "none")
    assert key != keys.submission_key(files, chapter, "another", "none")
    assert key != keys.submission_key(files, None, "secret", "none")
    monkeypatch.setattr(keys, "environment_hash", lambda: "another machine")
    assert key != keys.submission_key(files, chapter, "secret", "none")


def test_a_changed_check_changes_the_keys_of_its_chapters_only(tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr(keys, "CHECKS", tmp_path)
    for path in (REPOSITORY / "autograder" / "checks").glob("*.py"):
        shutil.copy(path, tmp_path)
    chapters = [read_chapter(path).exercises
                for path in chapter_paths(REPOSITORY / "book" / "chapters")]
    keys.checks_hash.cache_clear()
    before = [keys.checks_hash(each) for each in chapters]
    with open(tmp_path / "tokenizer.py", "a", encoding="utf-8") as file:
        file.write("# another check\n")
    keys.checks_hash.cache_clear()
    after = [keys.checks_hash(each) for each in chapters]
    keys.checks_hash.cache_clear()
    changed = [old != new for old, new in zip(before, after)]
    assert changed[1] and 0 < sum(changed) < len(chapters)


# --- with Dask --------------------------------------------------------------------------------


def records_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("records/*/*.json")}


def test_dask_and_this_process_make_the_same_records(course, chapter, learner, solved,
                                                      tmp_path):
    """Of a right, a wrong, an unfinished and a broken submission."""
    answer = editions.solutions(chapter)
    wrong = answer | {RUN: answer[RUN].replace("while len(ids) < max_tokens",
                                               "while len(ids) <= max_tokens")}
    folder = tmp_path / "submitted"
    hand_in(folder, "right", solved)
    hand_in(folder, "wrong", editions.to_text(editions.solve(learner, wrong)).encode())
    hand_in(folder, "unfinished", editions.to_text(
        editions.solve(learner, {COUNT: answer[COUNT]})).encode())
    hand_in(folder, "broken", solved[:len(solved) // 2])
    here = graded(folder, course, tmp_path / "here")
    dask = graded(folder, course, tmp_path / "dask", Cluster(course, 2))
    assert sorted(here, key=str) == sorted(dask, key=str) and len(here) == 4
    assert records_of(tmp_path / "here") == records_of(tmp_path / "dask")


def test_every_run_idle_or_loaded_makes_the_same_records(course, chapter, learner, tmp_path,
                                                         pytestconfig):
    runs = 20 if pytestconfig.getoption("--whole-class") else 3
    answer = editions.solutions(chapter)
    wrong = answer | {RUN: answer[RUN].replace("while len(ids) < max_tokens",
                                               "while len(ids) <= max_tokens")}
    hand_in(tmp_path / "submitted", "wrong",
            editions.to_text(editions.solve(learner, wrong)).encode())
    burning = []
    try:
        for number in range(runs):
            if number == runs // 2:
                burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                           for _ in range(2 * (os.cpu_count() or 1))]
            engine = Cluster(course, 1 + number % 2) if number % 5 == 4 else Here(course)
            graded(tmp_path / "submitted", course, tmp_path / str(number), engine)
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert len({tuple(records_of(tmp_path / str(number)).items())
                for number in range(runs)}) == 1


def test_a_worker_of_another_version_is_refused(course, solved, tmp_path, monkeypatch):
    from autograder.classes import engine

    hand_in(tmp_path / "submitted", "ada", solved)
    plugin = engine._plugin
    monkeypatch.setattr(engine, "_plugin", lambda course, _: plugin(course, "0123456789"))
    with pytest.raises(GearworksError, match="would give other grades"):
        graded(tmp_path / "submitted", course, tmp_path / "out", Cluster(course, 1))


def test_a_scheduler_that_is_not_there_is_named(course, solved, tmp_path, monkeypatch):
    from autograder.classes import engine

    monkeypatch.setattr(engine, "ANSWER_SECONDS", 1)
    hand_in(tmp_path / "submitted", "ada", solved)
    with pytest.raises(GearworksError, match="no scheduler of Dask answers"):
        graded(tmp_path / "submitted", course, tmp_path / "out",
               Cluster(course, scheduler="tcp://127.0.0.1:9"))


def test_a_large_class_takes_no_more_memory_than_a_small_one(course, chapter, learner, tmp_path,
                                                             pytestconfig):
    """Nor does it leave a process behind, or lose anything with a worker that is killed."""
    size = 5000 if pytestconfig.getoption("--whole-class") else 100
    own = psutil.Process()
    answer = editions.solutions(chapter)[COUNT]
    different = [editions.to_text(editions.solve(
        learner, {COUNT: benchmark.signed(answer, number)})).encode()
        for number in range(min(size // 4, 250))]
    for number in range(size):
        hand_in(tmp_path / "submitted", f"s{number:04}",
                signed(different[number % len(different)], f"by {number}"))
    before = {process.pid for process in own.children(recursive=True)}
    taken, done = [], 0

    def watched(found, total):
        nonlocal done
        for each in found:
            done += 1
            if done == size // 4:
                workers = [process for process in own.children()
                           if "spawn_main" in str(process.cmdline())]
                assert len(workers) == 2
                workers[0].kill()
            if done in (size // 2, size):
                taken.append(sum(process.memory_info().rss for process in
                                 [own, *own.children(recursive=True)]))
            yield each

    rows = graded(tmp_path / "submitted", course, tmp_path / "out", Cluster(course, 2),
                  bar=watched)
    assert len(rows) == size and {row.status for row in rows} == {Status.GRADED}
    assert len(records_of(tmp_path / "out")) == size
    assert taken[1] < 1.1 * taken[0]
    left = [process for process in own.children(recursive=True) if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert [process.cmdline() for process in alive
            if "multiprocessing.resource_tracker" not in str(process.cmdline())] == []


# --- killed, and run again --------------------------------------------------------------------


def command(folder, to, jobs):
    """`autograder grade` in a process group of its own."""
    return subprocess.Popen([sys.executable, "-m", "autograder", "grade", str(folder), "--to",
                             str(to), "--jobs", str(jobs)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, encoding="utf-8", start_new_session=True,
                            env=os.environ | {"AUTOGRADER_SECRET": "of the tests"})


def seconds_of(process):
    """The processor time that a process and its living children have used."""
    used = 0.0
    with suppress(psutil.Error):
        top = psutil.Process(process)
        for each in (top, *top.children(recursive=True)):
            with suppress(psutil.Error):
                used += sum(each.cpu_times()[:4])
    return used


@pytest.fixture(scope="module")
def class_of_chapter_1(tmp_path_factory):
    """Submissions of chapter 1 in which two exercises are done, right or not quite."""
    folder = tmp_path_factory.mktemp("chapter 1") / "submitted"
    real = read_chapter(chapter_paths(REPOSITORY / "book" / "chapters")[0])
    answer = editions.solutions(real)
    learner = editions.learner_edition(real, REPOSITORY)
    for number in range(6):
        own = {COUNT: benchmark.signed(answer[COUNT], number)}
        if number % 2:
            own[RUN] = answer[RUN]
        path = folder / f"student-{number}" / real.assignment / f"{real.stem}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(editions.to_text(editions.solve(learner, own)), encoding="utf-8")
    return folder


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_anywhere_and_run_again_the_table_is_the_same(class_of_chapter_1, tmp_path, jobs,
                                                             pytestconfig):
    points = 25 if pytestconfig.getoption("--whole-class") else 1
    whole = command(class_of_chapter_1, tmp_path / "whole", 1)
    said, _ = whole.communicate()
    assert whole.returncode == 0, said
    wanted = (tmp_path / "whole" / "grades.csv").read_bytes()
    chance = random.Random(jobs)
    to = tmp_path / "killed"
    for number in range(points):
        process = command(class_of_chapter_1, to, jobs)
        enough = chance.uniform(0.5, 9)         # by the processor's clock: on any machine this
        while process.poll() is None and seconds_of(process.pid) < enough:      # is anywhere
            time.sleep(0.02)
        with suppress(ProcessLookupError):                      # it may have come to its end
            os.killpg(process.pid, signal.SIGKILL)              # with Dask's scheduler
        process.communicate()
        for name, text in records_of(to).items():
            assert Record.from_json(text.decode()).key == name.removesuffix(".json")
        if number % 5 == 4:
            for path in list(to.glob("records/*/*.json"))[::2]:
                path.unlink()                                   # so that there is work left
    last = command(class_of_chapter_1, to, jobs)
    said, _ = last.communicate()
    assert last.returncode == 0, said
    assert (to / "grades.csv").read_bytes() == wanted
    assert broken_at(to / "audit.jsonl") is None


# --- what is written --------------------------------------------------------------------------


def table_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_who_is_missing_is_in_the_table_without_a_number(course, solved, judged_once, tmp_path):
    hand_in(tmp_path / "submitted", "ada", solved)
    hand_in(tmp_path / "submitted", "eve", b"")
    roster = Roster((Student("ada"), Student("cleo", "Cleo", "de Mérode"), Student("eve")))
    results = Results(tmp_path / "out")
    rows = graded(tmp_path / "submitted", course, results.folder, roster=roster)
    publish(rows, results, NOW)
    table = {row["student_id"]: row for row in table_of(results.folder / "grades.csv")}
    assert [table[name]["status"] for name in ("ada", "cleo", "eve")] == [
        "graded", "not submitted", "unreadable"]
    assert table["ada"]["total"] and not table["cleo"]["total"] and not table["eve"]["total"]
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "Who is missing: 1" in page and "Cleo de Mérode (cleo)" in page
    assert "ch98" in summary(rows) and "not submitted" in summary(rows)
    assert not (results.folder / "feedback" / "eve").exists()


def test_the_report_names_mistakes_and_failing_checks(course, chapter, learner, tmp_path):
    """And the feedback is escaped, and shows nothing of what hidden checks gave to the code."""
    answer = editions.solutions(chapter)
    wrong = answer | {
        RUN: answer[RUN].replace("while len(ids) < max_tokens", "while len(ids) <= max_tokens"),
        COUNT: "def parameter_count(shape):\n"
               f"    print('{HIDDEN}', shape)\n"
               f"    raise type('{HIDDEN}' + str(shape), (Exception,), {{}})('<b>')"}
    hand_in(tmp_path / "submitted", "<i>eve", editions.to_text(
        editions.solve(learner, wrong)).encode())
    results = Results(tmp_path / "out")
    publish(graded(tmp_path / "submitted", course, results.folder), results, NOW)
    report = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "Misconceptions" in report and "failed most often" in report
    assert "&lt;i&gt;eve" in report and "<i>eve" not in report
    [page] = results.folder.glob("feedback/*/98_small.html")
    text = page.read_text(encoding="utf-8")
    assert "<b>" not in text and "&lt;b&gt;" in text
    assert "pipeline.run_request: " in text and "of 0" not in text
    [record] = results.folder.glob("records/*/*.json")
    checks = [check for exercise in json.loads(record.read_text(encoding="utf-8"))["exercises"]
              for check in exercise["checks"] if not check["public"]]
    assert checks and all(HIDDEN not in json.dumps(check) and not check["found"]
                          and not check["expected"] for check in checks)


def test_changes_are_written_down_and_tampering_shows(course, solved, judged_once, tmp_path):
    results = Results(tmp_path / "out")
    hand_in(tmp_path / "submitted", "ada", solved)
    publish(graded(tmp_path / "submitted", course, results.folder), results, NOW)
    hand_in(tmp_path / "submitted", "ada", solved[:len(solved) // 2])
    publish(graded(tmp_path / "submitted", course, results.folder), results, NOW)
    path = results.folder / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["result", "result"]
    assert lines[0]["was"] is None and lines[1]["was"] == lines[0]["now"]
    assert lines[1]["now"]["status"] == "partial" and broken_at(path) is None
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"status": "graded"', '"status": "gradeD"', 1),
                    encoding="utf-8")
    assert broken_at(path) == 2
    AuditLog(path).add("more")
    assert broken_at(path) == 2


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    with Results(tmp_path).locked():
        with pytest.raises(GearworksError, match="another run"):
            with Results(tmp_path).locked():
                pass


# --- late -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours, points", [(-1, 0), (0.2, 0), (0.3, 8), (24, 8), (24.1, 16),
                                           (1000, 40)])
def test_late_costs_a_part_for_each_day_begun(hours, points):
    rule = late_policy("10%/day, max=50%, grace=15min", "2026-03-01T12:00+00:00")
    assert rule.penalty(NOW + timedelta(hours=hours), 80) == points
    assert rule.penalty(None, 80) == on_time.penalty(NOW, 80) == 0


@pytest.mark.parametrize("rule, due", [("10%", "2026-03-01"), ("10%/day", ""), ("", "soon")])
def test_a_late_rule_that_cannot_be_applied_is_refused(rule, due):
    with pytest.raises(UsageError):
        late_policy(rule, due)


def test_late_points_are_taken_from_the_total(course, solved, judged_once, tmp_path):
    hand_in(tmp_path / "submitted", "ada", solved)
    (tmp_path / "submitted" / "ada" / "ch98" / "timestamp.txt").write_text(
        "2026-03-02 13:00:00.000000 UTC", encoding="utf-8")
    rule = late_policy("10%/day", "2026-03-01T12:00+00:00")
    [row] = graded(tmp_path / "submitted", course, tmp_path / "out", late=rule)
    assert row.penalty == row.required_max / 5 and row.total == row.required_max * 4 / 5
